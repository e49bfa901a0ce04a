"""Whether an attention adapts to its images, or only scales."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn as nn
from torch import Tensor

from mmstepnet.attentions import Attention
from mmstepnet.steps import ResidualStep, fused
from mmstepnet.steps.examples import run_batch
from mmstepnet.tracing import FIRST, Arrangement, Finder, Run, Sum, unwrap
from mmstepnet.tracing.additions import PROJECTS
from mmstepnet.tracing.operations import Operation
from mmstepnet.tracing.tags import Tag, Tags

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
    finder = _GateFinder(model)
    # The reference path multiplies each gate for all to see.
    with finder.following(), fused(False):
        for batch in batches:
            run_batch(model, batch)
            for name, step, _ in Arrangement(finder).named:
                if step.left_out not in (None, FIRST, PROJECTS):
                    continue
                gate, product = finder.gate_of(step) or (None, None)
                if product is not None and product not in products.values():
                    products.setdefault(name, product)
                if gate is not None and products.get(name) == product:
                    values[name].append(_of_channels(gate).double().cpu())
                elif step in finder.constant:
                    constant[name] = None
            elsewhere |= dict.fromkeys(
                product[0]
                for product in finder.products.values()
                if product not in products.values()
                and not isinstance(finder.modules[product[0]], Attention)
            )
    if not (products or constant or elsewhere):
        raise ValueError(
            f'no step of {type(model).__name__} has an attention '
            f'value, one number an image and channel'
        )
    if not products:
        return GateStatistics(
            {}, {}, {}, 0.0, {}, list(constant), list(elsewhere)
        )
    gates = {name: torch.cat(parts) for name, parts in values.items()}
    means = {name: gate.mean(0) for name, gate in gates.items()}
    blocks = torch.stack([mean.mean() for mean in means.values()])
    kinds: dict[str, dict] = {
        'attention': {},
        'channel mean': {products[name]: means[name] for name in means},
        'one number': dict.fromkeys(products.values(), blocks.mean()),
    }
    results = {}
    for kind, constants in kinds.items():
        if evaluate is not None:
            finder = _GateFinder(model, constants)
            with finder.following(), fused(False):
                results[kind] = float(evaluate(model))
            if not finder.products:
                raise ValueError(
                    'evaluate ran no gate, expected a call of '
                    'the model that it is given: model(images)'
                )
    return GateStatistics(
        dict(zip(means, blocks.tolist())),
        {
            name: float(gate.std(0, correction=0).mean())
            for name, gate in gates.items()
        },
        {name: float(mean.std(correction=0)) for name, mean in means.items()},
        float(blocks.std(correction=0)),
        results,
        list(constant),
        list(elsewhere),
    )


class _GateFinder(Finder):
    """Knows the products with gates; puts constants in place of some gates.

    Args:
        model (nn.Module): The model.
        constants (Mapping, optional): Values of gates by their products, one
            number or one a channel. None measures the gates.
    """

    def __init__(
        self,
        model: nn.Module,
        constants: Mapping[Product, Tensor] | None = None,
    ):
        self.constants = constants or {}
        super().__init__(
            model, norms=StepMeasurement if constants is None else None
        )

    def forget(self) -> None:
        """Forget the last pass."""
        super().forget()
        self.count: Counter = Counter()
        self.products: dict[tuple, Product] = {}
        self.constant: set[Sum] = set()
        self._projected: dict[Sum, Tensor] = {}  # gates
        self._scaled: set[Tag] = set()  # memory of multiples

    def gate_of(self, step: Sum) -> tuple[Tensor, Product] | None:
        """The gate of a step that multiplies for all to see."""
        gate = self._projected.get(step)
        if gate is None and step.norms is not None:
            gate = step.norms.gate
        if gate is None:
            return None
        product = self.products.get(Tags.view(gate))
        return None if product is None else (gate, product)

    def _multiple(self, operation: Operation, args: tuple) -> Any:
        found = super()._multiple(operation, args)
        if found is not None and operation.scales and operation.writes:
            self._scaled.add(self.tags.make(found[0]))
        return found

    def _follow(
        self, operation: Operation, x: Tensor, k: Any, out: Any
    ) -> None:
        super()._follow(operation, x, k, out)
        if operation.scales or self.tags.make(x) in self._scaled:
            self._scaled.add(self.tags.make(out))

    def _begin(
        self, owner: Run, x: Tensor, f: Tensor, args: tuple, kwargs: dict
    ) -> Sum | None:
        found = super()._begin(owner, x, f, args, kwargs)
        if found is not None and (
            kwargs.get('alpha', 1) != 1 or self.tags.make(f) in self._scaled
        ):
            self.constant.add(found)
        return found

    def _see_projection(self, owner: Run, a: Tensor, b: Tensor) -> Sum | None:
        found = super()._see_projection(owner, a, b)
        if found is not None:
            state = found.of_state.bit_length() - 1
            for t in (a, b):
                gate = self._factors(t, state)[1]
                if gate is not None:
                    self._projected[found] = gate
                elif self.tags.make(t) in self._scaled:
                    self.constant.add(found)
        return found

    def _observe(
        self,
        module: ResidualStep,
        x: Tensor,
        f: Tensor,
        step: Tensor | None,
        out: Tensor,
    ) -> None:
        count = len(self.sums)
        super()._observe(module, x, f, step, out)
        if len(self.sums) > count and self._is_constant(x, step):
            self.constant.add(self.sums[-1])

    def _observe_branch(
        self,
        module: ResidualStep,
        x: Tensor,
        f: Tensor,
        step: Tensor | None,
        scaled: Tensor,
    ) -> None:
        super()._observe_branch(module, x, f, step, scaled)
        if self._is_here(module) and self._is_constant(x, step):
            self._scaled.add(self.tags.make(scaled))

    def _is_constant(self, x: Tensor, step: Tensor | None) -> bool:
        """Whether a step was computed from nothing that the state was."""
        return step is not None and not (
            self.tags.make(step).known & self.tags.make(x).known
        )

    def _factor(self, operation: Operation, a: Tensor, b: Tensor) -> Any:
        factor = super()._factor(operation, a, b)
        # Of one image, weights that a module returns look like a gate.
        if (
            factor is not None
            and factor.gate is not None
            and (self.tags.make(a).known & self.tags.make(b).known)
        ):
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
