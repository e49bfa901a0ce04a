"""Whether an attention adapts to its images, or only scales."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn as nn
from torch import Tensor

from mmstepnet.steps import fused
from mmstepnet.steps.examples import run_batch
from mmstepnet.steps.finding import FIRST, Arrangement, Finder, unwrap
from mmstepnet.steps.finding.tags import Tags

from .measurement import StepMeasurement

Product = tuple[str, int]
"""A product with a gate: the module that multiplies, and which of its."""


class GateStatistics(NamedTuple):
    """How the attention values Δt of a network vary.

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
    """

    mean: dict[str, float]
    over_images: dict[str, float]
    over_channels: dict[str, float]
    over_blocks: float
    results: dict[str, float]


def measure_gates(model: nn.Module, batches: Iterable[Any],
                  evaluate: Callable[[nn.Module], float] | None = None
                  ) -> GateStatistics:
    """Measure whether the attention of a network adapts to its images.

    It may be any factor of f that was computed from the state, one number an
    image and channel: ours, or an SE of the host's. The model runs in
    evaluation mode.

    Args:
        model (nn.Module): The model.
        batches (Iterable): As :func:`measure_stiffness` takes them.
        evaluate (Callable, optional): ``evaluate(model)`` gives a number such
            as the accuracy. It is called three times, the last two with
            constants in place of Δt. Defaults to None.

    Raises:
        ValueError: No step of the model has an attention value, or
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
    finder = _GateFinder(model)
    # The reference path multiplies each gate for all to see.
    with finder.following(), fused(False):
        for batch in batches:
            run_batch(model, batch)
            for name, step, _ in Arrangement(finder).named:
                gate = step.norms and step.norms.gate
                if gate is not None and step.left_out in (None, FIRST) and (
                        product := finder.products.get(Tags.view(gate))):
                    products[name] = product
                    values[name].append(_of_channels(gate).double().cpu())
    if not products:
        raise ValueError(f'no step of {type(model).__name__} has an attention '
                         f'value, one number an image and channel')
    gates = {name: torch.cat(parts) for name, parts in values.items()}
    means = {name: gate.mean(0) for name, gate in gates.items()}
    blocks = torch.stack([mean.mean() for mean in means.values()])
    kinds: dict[str, dict] = {
        'attention': {},
        'channel mean': {products[name]: means[name] for name in means},
        'one number': dict.fromkeys(products.values(), blocks.mean())}
    results = {}
    for kind, constants in kinds.items():
        if evaluate is not None:
            finder = _GateFinder(model, constants)
            with finder.following(), fused(False):
                results[kind] = float(evaluate(model))
            if not finder.products:
                raise ValueError('evaluate ran no gate, expected a call of '
                                 'the model that it is given: model(images)')
    return GateStatistics(
        dict(zip(means, blocks.tolist())),
        {name: float(gate.std(0, correction=0).mean())
         for name, gate in gates.items()},
        {name: float(mean.std(correction=0)) for name, mean in means.items()},
        float(blocks.std(correction=0)), results)


class _GateFinder(Finder):
    """Knows the products with gates; puts constants in place of some gates.

    Args:
        model (nn.Module): The model.
        constants (Mapping, optional): Values of gates by their products, one
            number or one a channel. None measures the gates.
    """

    def __init__(self, model: nn.Module,
                 constants: Mapping[Product, Tensor] | None = None):
        self.constants = constants or {}
        super().__init__(
            model, norms=StepMeasurement if constants is None else None)

    def forget(self) -> None:
        """Forget the last pass."""
        super().forget()
        self.count: Counter = Counter()
        self.products: dict[tuple, Product] = {}

    def _factor(self, *args: Any) -> Any:
        factor = super()._factor(*args)
        if factor is not None and factor.gate is not None:
            name = self.stack[-1].name
            product = name, self.count[name]
            self.count[name] += 1
            self.products[Tags.view(factor.gate)] = product
            if product in self.constants:
                gate = _of_channels(factor.gate)
                gate.copy_(self.constants[product].to(gate))
        return factor


def _of_channels(gate: Tensor) -> Tensor:
    """See a gate, perhaps an expanded one, as (N, C)."""
    for axis, stride in enumerate(gate.stride()):
        if stride == 0:
            gate = gate.narrow(axis, 0, 1)
    return gate.view(len(gate), -1)
