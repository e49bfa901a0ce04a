"""Whether an attention adapts to its images, or only scales."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
import torch.nn as nn
from torch import Tensor

from mmstepnet.attentions import Attention
from mmstepnet.steps import fused
from mmstepnet.steps.examples import run_batch
from mmstepnet.tracing import FIRST, PROJECTS, Arrangement, Finder, unwrap
from mmstepnet.tracing.sums import Product
from mmstepnet.tracing.tags import channels_of

LEAST_DEVIATION = 1e-3
"""Standard deviation of the attention value Δt below which a gate does next
to nothing, and no correlation with it is shown."""

HARDLY_MOVED = (
    f'the gates have hardly moved: no deviation of Δt, over images, channels '
    f'or blocks, reaches {LEAST_DEVIATION:g}'
)
"""What is printed where :attr:`GateStatistics.hardly_moved`."""


class GateStatistics(NamedTuple):
    """Statistics of the attention values Δt of a network.

    Attributes:
        mean (dict[str, float]): Mean of Δt, by the step's name.
        over_images (dict[str, float]): Deviation of Δt over images, the mean
            over channels. 0: the attention only scales.
        over_channels (dict[str, float]): Deviation over channels of Δt's mean
            over images.
        over_blocks (float): Deviation of ``mean``.
        results (dict[str, float]): What ``evaluate`` gives: with the
            ``'attention'``, with each ``'channel mean'`` in its place, and
            with ``'one number'``, the mean of ``mean``.
        constant (list[str]): Steps whose branch is multiplied by numbers or
            weights alone: a scale by construction.
        elsewhere (list[str]): Modules that multiply by a gate and end no
            branch, such as an SE inside it. They are neither measured nor
            replaced.
    """

    mean: dict[str, float]
    over_images: dict[str, float]
    over_channels: dict[str, float]
    over_blocks: float
    results: dict[str, float]
    constant: list[str]
    elsewhere: list[str]

    @property
    def hardly_moved(self) -> bool:
        """Whether Δt is nearly one number for all."""
        deviations = (
            *self.over_images.values(),
            *self.over_channels.values(),
            self.over_blocks,
        )
        return bool(self.mean) and max(deviations) < LEAST_DEVIATION


def measure_gates(
    model: nn.Module,
    batches: Iterable[Any],
    evaluate: Callable[[nn.Module], float] | None = None,
) -> GateStatistics:
    """Measure whether the attention of a network adapts to its images.

    It may be any factor of f that was computed from the state, one number an
    image and channel: ours, or an SE of the host's, also where the identity
    is projected. The model runs in evaluation mode.

    Args:
        model (nn.Module): The model.
        batches (Iterable): As :func:`measure_stiffness` takes them.
        evaluate (Callable, optional): ``evaluate(model)`` gives a number such
            as the accuracy. It is called three times, the last two with
            constants in place of Δt; not where there is none that adapts.
            Defaults to None.

    Raises:
        ValueError: The model has neither a gate nor a constant step, or
            ``evaluate`` runs the model by another way than a call.

    Example:
        >>> import torch, mmstepnet
        >>> from torchvision.models import resnet18
        >>> from mmstepnet.stiffness import measure_gates
        >>> model = resnet18()
        >>> _ = mmstepnet.insert_steps(model, 'SE')
        >>> found = measure_gates(model, [torch.rand(2, 3, 64, 64)])
        >>> found.mean['layer1.1'], found.over_images['layer1.1']
        (1.0, 0.0)
    """
    model = unwrap(model)
    values: dict[str, list[Tensor]] = defaultdict(list)
    products: dict[str, Product] = {}
    constant: dict[str, None] = {}
    elsewhere: dict[str, None] = {}
    finder = Finder(model)
    # The reference path multiplies each gate for all to see.
    with finder.following(), fused(False):
        for batch in batches:
            run_batch(model, batch)
            for name, step, _ in Arrangement(finder).named:
                if step.left_out not in (None, FIRST, PROJECTS):
                    continue
                product = step.product
                if product is not None and product not in products.values():
                    products.setdefault(name, product)
                if product is not None and products.get(name) == product:
                    gate = channels_of(finder.gates[product])
                    values[name].append(gate.double().cpu())
                elif step.is_constant:
                    constant[name] = None
            for product in finder.gates:
                name = product[0]
                is_ours = isinstance(finder.modules[name], Attention)
                if product not in products.values() and not is_ours:
                    elsewhere[name] = None
    if not (products or constant or elsewhere):
        raise ValueError(
            f'no step of {type(model).__name__} has an attention '
            f'value, one number an image and channel'
        )
    if not products:
        return GateStatistics(
            {}, {}, {}, 0.0, {}, list(constant), list(elsewhere)
        )
    means: dict[str, Tensor] = {}
    channel_means: dict[Product, Tensor] = {}
    over_images: dict[str, float] = {}
    over_channels: dict[str, float] = {}
    for name, parts in values.items():
        gates = torch.cat(parts)
        mean = means[name] = gates.mean(0)
        channel_means[products[name]] = mean
        over_images[name] = float(gates.std(0, correction=0).mean())
        over_channels[name] = float(mean.std(correction=0))
    blocks = torch.stack([mean.mean() for mean in means.values()])
    kinds: dict[str, dict] = {
        'attention': {},
        'channel mean': channel_means,
        'one number': dict.fromkeys(products.values(), blocks.mean()),
    }
    results = {}
    for kind, constants in kinds.items():
        if evaluate is not None:
            finder = Finder(model, constants=constants)
            with finder.following(), fused(False):
                results[kind] = float(evaluate(model))
            if not finder.gates:
                raise ValueError(
                    'evaluate ran no gate, expected a call of '
                    'the model that it is given: model(images)'
                )
    return GateStatistics(
        dict(zip(means, blocks.tolist())),
        over_images,
        over_channels,
        float(blocks.std(correction=0)),
        results,
        list(constant),
        list(elsewhere),
    )
