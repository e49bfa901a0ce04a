"""The residual steps of a model: their names, stages and first blocks."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from math import prod
from typing import NamedTuple

import torch.nn as nn

from mmstepnet.generated import host_of

from .finder import Finder
from .selection import Selection, is_within, select
from .sums import Call, Sum
from .wrappers import unwrap

LISTS = nn.Sequential, nn.ModuleList, nn.ModuleDict

ALONE = 'no container'
FIRST = 'first of its stage'
OUTSIDE = 'outside of the backbone'
NOT_CHOSEN = 'not chosen by blocks='
INSIDE = 'part of the branch of another step'
NO_SUM = 'no addition to its state was seen'


class StageRule(NamedTuple):
    """A condition under which a container is a stage.

    Two of its children hold sums on states of one shape, one of them a step.
    A child of the same class that only makes the state counts, too.

    Attributes:
        listed (bool): Whether the container must be a list of modules, in
            which the one begins with a state that the other returned.
        alike (bool): Whether both must be of one class.
        parts (bool): Whether they must have parts of the same names.
    """

    listed: bool
    alike: bool = True
    parts: bool = False


STAGE_RULES = (
    # CPUBone: a block is a list of wrappers of one class, which looks like a
    # stage. Blocks have parts of the same names, wrappers have not.
    StageRule(listed=True, parts=True),
    # ResNet
    StageRule(listed=True),
    # SHViT: two wrappers are attributes of one module. NASNet: a cell begins
    # with states of two others.
    StageRule(listed=False),
    # A stage of two blocks, of which somebody has changed one.
    StageRule(listed=True, alike=False),
)
"""The surest come first; a sum takes the first that gives it a block."""


@dataclass(frozen=True)
class FoundStep:
    """A residual step of a model, or a sum that looks like one.

    Attributes:
        name (str): What a recording calls it.
        owner (str): The module whose code adds.
        block (str, optional): The block that it belongs to.
        stage (str, optional): The container that the block stands in.
        shape (tuple[int, ...]): Of the state x_t and of f(x_t).
        gate (tuple[int, ...], optional): Shape of the attention value Δt.
        left_out (str, optional): Why it is not recorded. None: it is.
    """

    name: str
    owner: str
    block: str | None
    stage: str | None
    shape: tuple[int, ...]
    gate: tuple[int, ...] | None
    left_out: str | None

    def __str__(self) -> str:
        gate = f', gate {self.gate}' if self.gate else ''
        return (
            f'{self.name}: {self.shape}{gate}, {self.left_out or "recorded"}'
        )


@dataclass(eq=False)
class Child:
    """A child of a container, in one call of the module around that."""

    name: str
    call: Call
    stage: 'Container'
    sums: list[Sum] = field(default_factory=list)
    returned: set[int] = field(default_factory=set)


@dataclass(eq=False)
class Container:
    """A module that may be a stage, in one call of the module around it."""

    name: str
    children: dict[object, Child] = field(default_factory=dict)
    is_stage: dict[StageRule, bool] = field(default_factory=dict)


class NamedSum(NamedTuple):
    """A sum in its block, if it has one."""

    name: str
    sum: Sum
    block: Child | None


class Arrangement:
    """Steps of one pass in their blocks and stages.

    Args:
        finder (Finder): What has followed the pass.
        selection (Selection, optional): Blocks, see :func:`select`.

    Attributes:
        named (list[NamedSum]): All sums.
        recorded (list[NamedSum]): Those that are recorded.
        without (list[Child]): Blocks without any sum: they may add in a way
            that is not seen.
        excluded (list[str]): Names of the blocks left out as first ones.
        repeated (bool): Whether all steps ran again on other states than
            those that they had made: the whole network on other inputs.
    """

    def __init__(self, finder: Finder, selection: Selection | None = None):
        self.finder = finder
        self.modules = finder.modules
        self.chosen = (
            None
            if selection is None
            else set().union(*select(self.modules, selection).values())
        )
        backbone = getattr(finder.model, 'backbone', None)
        is_backbone = selection is None and isinstance(backbone, nn.Module)
        self.scope = 'backbone.' if is_backbone else ''
        self._containers: dict[object, Container] = {}
        stepping = {s.owner for s in finder.sums if s.state}
        sums = [
            s
            for s in finder.sums
            if s.state or s.returned and s.owner not in stepping
        ]
        places = {s: list(self._place(s)) for s in sums}
        blocks = self._blocks(places)
        if self.chosen is not None:
            self._choose(blocks, places)
        # Both are asked for each sum of each pass.
        self._firsts = {
            stage: self._first(stage)
            for stage in {b.stage for b in blocks.values() if b}
        }
        self._steps_of: dict[Child, list[Sum]] = defaultdict(list)
        for candidate, block in blocks.items():
            if block is not None and candidate.state:
                self._steps_of[block].append(candidate)
        projections = [s for s in finder.sums if not s.state]
        for candidate, block in blocks.items():
            if not candidate.left_out:
                candidate.left_out = self._reason(
                    candidate, block, projections
                )
        self.named: list[NamedSum] = []
        self._later: list[list[Sum]] = []  # of each block's further calls
        self._build(blocks)
        self.without = self._blocks_without_sums(blocks)

    def _choose(
        self, blocks: dict[Sum, Child | None], places: dict[Sum, list[Child]]
    ) -> None:
        """Keep the chosen ones of the blocks, or what is chosen inside.

        A module that no rule knows as a block is one where it is chosen.
        """
        chosen = self.chosen or set()
        for candidate, block in blocks.items():
            if block is None or not is_within(block.name, chosen):
                blocks[candidate] = None
            for place in places[candidate]:
                is_inside = block is None or is_within(
                    place.name, {block.name}
                )
                if place.name in chosen and is_inside:
                    blocks[candidate] = place
                    break

    def _place(self, candidate: Sum) -> Iterator[Child]:
        """Modules around a sum, from inside, as children of what is around.

        Lists, which do not run, stand between a call and the next outer one.
        """
        call = candidate.owner
        while call.outer is not None:
            name: str = call.name
            key: object = call
            while name:
                parent = self._container(call.outer, name.rpartition('.')[0])
                child = parent.children.setdefault(
                    key, Child(name, call, parent)
                )
                child.sums.append(candidate)
                child.returned |= call.returned
                yield child
                name = key = parent.name
                if name == call.outer.name or not is_within(
                    name, {call.outer.name}
                ):
                    break
            call = call.outer

    def _container(self, outer: Call, name: str) -> Container:
        """The container of a module, with all its children that ran."""
        container = self._containers.get((outer, name))
        if container is None:
            container = self._containers[outer, name] = Container(name)
            for call in outer.inner:
                if call.name.rpartition('.')[0] == name:
                    container.children[call] = Child(
                        call.name, call, container, returned=set(call.returned)
                    )
        return container

    def _blocks(
        self, places: dict[Sum, list[Child]]
    ) -> dict[Sum, Child | None]:
        """The block of each sum by its stage, the surest stages first."""
        blocks: dict[Sum, Child | None] = dict.fromkeys(places)
        for rule in STAGE_RULES:
            for candidate, around in places.items():
                blocks[candidate] = blocks[candidate] or next(
                    (p for p in around if self._is_stage(p.stage, rule)), None
                )
            kinds = set()
            for candidate, block in blocks.items():
                if block and candidate.state:
                    kinds.add(self._kind(block.name))
            for candidate, around in places.items():
                if not (candidate.state and blocks[candidate]):
                    # In a stage of one block, like those in others.
                    blocks[candidate] = next(
                        (p for p in around if self._kind(p.name) in kinds),
                        None,
                    )
        if not any(blocks.values()):
            for s in self._alike([s for s in places if s.state and places[s]]):
                blocks[s] = places[s][0]
        return blocks

    def _alike(self, sums: list[Sum]) -> list[Sum]:
        """Sums in modules of which there are several of one class (RTMDet)."""
        kinds = Counter(map(self._kind, {s.owner.name for s in sums}))
        return [s for s in sums if kinds[self._kind(s.owner.name)] > 1]

    def _is_stage(self, container: Container, rule: StageRule) -> bool:
        if rule not in container.is_stage:
            is_list = isinstance(self.modules[container.name], LISTS)
            container.is_stage[rule] = (is_list or not rule.listed) and any(
                self._are_blocks(candidate, child, other, rule)
                for child in container.children.values()
                for candidate in child.sums
                if candidate.state
                for other in container.children.values()
            )
        return container.is_stage[rule]

    def _are_blocks(
        self, candidate: Sum, child: Child, other: Child, rule: StageRule
    ) -> bool:
        """Whether a child with a step and another one make a stage."""
        kind = self._kind(other.name)
        if other is child:
            return False
        if rule.alike and kind is not self._kind(child.name):
            return False
        has_shape = any(s.shape == candidate.shape for s in other.sums)
        if rule.listed:
            makes_state = candidate.state in other.returned
            is_first = rule.alike and not other.sums
            if not makes_state or not (has_shape or is_first):
                return False
        elif not has_shape or other.name == child.name:  # it runs again
            return False
        # Lists are alike only if what is in them is.
        needs_parts = rule.parts or (rule.alike and kind in LISTS)
        return not needs_parts or self._parts(child) == self._parts(other)

    def _parts(self, child: Child) -> list[str]:
        module = self.modules[child.name]
        return [name for name, _ in module.named_modules()]

    def _kind(self, name: str) -> type:
        return host_of(self.modules.get(name))

    def _first(self, container: Container) -> Child | None:
        """The first block of a stage, if it holds a sum.

        It is a stage's first child that holds one or is of the class of one
        that does, as a first block that only makes the stage's state. A block
        that stands alone and projects no identity is no first one (a reading:
        the paper leaves out what begins a stage of several blocks).
        """
        holders = [c for c in container.children.values() if c.sums]
        names = set()
        kinds = set()
        for child in holders:
            names.add(child.name)
            if any(s.state for s in child.sums):
                kinds.add(self._kind(child.name))
        blocks = []
        for part in self.modules[container.name]._modules:
            name = f'{container.name}.{part}'.lstrip('.')
            if name in names or self._kind(name) in kinds:
                blocks.append(name)
        if len(blocks) == len(holders) == 1:
            sums = [
                s
                for s in holders[0].sums
                if not any(map(s.is_in_branch_of, holders[0].sums))
            ]
            # A ResidualStep may hide that its block projects the identity: it
            # reports a state that the block never received.
            if all(s.state for s in sums) and (
                not sums[0].part or (sums[0].owner.given >> sums[0].state & 1)
            ):
                return None
        first = blocks[0] if blocks else holders[0].name
        return next((c for c in holders if c.name == first), None)

    def _reason(
        self, candidate: Sum, block: Child | None, projections: list[Sum]
    ) -> str | None:
        """Why a step is not recorded: the first rule that holds."""
        if block is None:
            return ALONE if self.chosen is None else NOT_CHOSEN
        if not candidate.owner.name.startswith(self.scope):
            return OUTSIDE
        others = self._steps_of[block] + [
            other
            for other in projections
            if is_within(other.owner.name, {block.name})
        ]
        if any(candidate.is_in_branch_of(other) for other in others):
            return INSIDE
        if self._firsts[block.stage] is block:
            return FIRST
        return None

    def _build(self, blocks: dict[Sum, Child | None]) -> None:
        """Name all sums, and say which are recorded."""
        excluded: dict[str, None] = {}
        calls: dict[str, list[Sum]] = defaultdict(list)
        for candidate, block in blocks.items():
            name = candidate.owner.name
            if block is not None:
                name = self._name(candidate, block)
                is_first = self._firsts[block.stage] is block
                if candidate.left_out == FIRST or (
                    is_first and not candidate.state
                ):
                    excluded[block.name] = None
            if candidate.left_out in (None, FIRST):
                calls[name].append(candidate)
                if len(calls[name]) > 1:  # a block that runs several times
                    name = f'{name}#{len(calls[name])}'
            self.named.append(NamedSum(name, candidate, block))
        self.recorded = [
            named for named in self.named if not named.sum.left_out
        ]
        self.excluded = list(excluded)
        for first, *others in calls.values():
            self._later.append(
                [s for s in others if not s.of_state >> first.number & 1]
            )
        self.repeated = bool(calls) and all(self._later)

    def _blocks_without_sums(
        self, blocks: dict[Sum, Child | None]
    ) -> list[Child]:
        """Blocks' neighbours of their class, whose state keeps its shape."""
        without: dict[str, Child] = {}
        for block in blocks.values():
            if block is None or self._kind(block.name) in LISTS:
                continue
            kind = self._kind(block.name)
            for child in block.stage.children.values():
                if (
                    not child.sums
                    and child.call.shapes
                    and self._kind(child.name) is kind
                ):
                    without[child.name] = child
        return list(without.values())

    def take_first_pass(self) -> None:
        """Leave out what ran again, where the network is :attr:`repeated`."""
        for candidate in chain(*self._later):
            candidate.left_out = 'runs again, on another input'
        self.recorded = [r for r in self.recorded if not r.sum.left_out]

    @property
    def steps(self) -> list[FoundStep]:
        """All that was found, in the order of the pass."""
        steps = []
        for name, candidate, block in self.named:
            steps.append(
                FoundStep(
                    name,
                    candidate.owner.name,
                    block and block.name,
                    block and block.stage.name,
                    candidate.shape,
                    candidate.gate,
                    candidate.left_out,
                )
            )
        for child in self.without:
            name, stage = child.name, child.stage.name
            steps.append(FoundStep(name, name, name, stage, (), None, NO_SUM))
        return steps

    def explain(self) -> str:
        """Say why nothing can be recorded."""
        seen = [
            *(f'{step.name}: {step.left_out}' for step in self.steps),
            *(
                f'{count} sums in {name or "the model itself"}: {reason}'
                for (name, reason), count in self.finder.missed.most_common()
            ),
        ]
        lines = [
            f'no residual step of {type(self.finder.model).__name__} can be '
            f'recorded.'
        ]
        if seen:
            lines += [
                f'Found, but left out, the first of {len(seen)}:',
                *seen[:9],
            ]
        else:
            lines.append(
                'It has no residual blocks, or adds no two plain tensors '
                'where hooks and dispatch modes see it. PyTorch makes nested '
                'ones of a padding mask, unless torch.backends.mha.'
                'set_fastpath_enabled(False) was called'
            )
        return '\n  '.join(lines)

    def by_block(self) -> dict[str, list[Sum]]:
        """Steps of each block, whatever the recorder leaves them out for.

        Where a step stands in no stage, its block is the module that adds, if
        there is another of its class: stages may have one block each.
        """
        alone = []
        for _, candidate, _ in self.named:
            if candidate.state and candidate.left_out == ALONE:
                alone.append(candidate)
        alone = self._alike(alone)
        table: dict[str, list[Sum]] = defaultdict(list)
        for _, candidate, block in self.named:
            in_stage = candidate.left_out in (None, FIRST, OUTSIDE)
            if candidate in alone:
                table[candidate.owner.name].append(candidate)
            elif block and candidate.state and in_stage:
                table[block.name].append(candidate)
        return table

    def _name(self, candidate: Sum, block: Child) -> str:
        """Name of a block, and of its step if it has several."""
        steps = [
            s for s in self._steps_of[block] if s.left_out in (None, FIRST)
        ]
        if len(steps) < 2 or candidate not in steps:
            return block.name
        if candidate.part is not None:
            return f'{block.name}.{candidate.part}'
        place = steps.index(candidate)
        if len(steps) == 2 and prod(steps[0].shape) == prod(steps[1].shape):
            return f'{block.name}.{("attn_step", "mlp_step")[place]}'
        owner = candidate.owner.name
        owners = [s.owner.name for s in steps]
        if owner == block.name or owners.count(owner) > 1:
            return f'{owner}.step{place + 1}'
        return owner


def find_steps(
    model: nn.Module, *inputs: object, **named: object
) -> list[FoundStep]:
    r"""Find the residual steps of a model by running it, without measuring.

    A residual step (Eq. 1 and 4),

    .. math::
        x_{t+1} = x_t + f(x_t) \Delta t,

    is an addition of a state to something that was computed from this state
    by a contraction: a convolution, a matrix product, attention, pooling, an
    FFT or an operator that PyTorch does not know. A state is a tensor that a
    module was given or returned. What wrote the addition, wrapped the block
    or patched its ``forward`` does not matter, and no class is known by name.

    The model runs in evaluation mode and without gradients, and is left as it
    was. On the meta device, or under ``FakeTensorMode``, nothing is computed:
    a network of any size is described in about a second.

    Args:
        model (nn.Module): Model, or a wrapper of one.
        *inputs: What its ``forward`` takes.
        **named: The same by name.

    Returns:
        list[FoundStep]: In the order of the pass, also what
        :class:`TrajectoryRecorder` leaves out, with the reason.

    Raises:
        TypeError: ``model`` is no module, or was made by ``torch.jit``.

    Example:
        >>> import torch
        >>> from torchvision.models import resnet50
        >>> from mmstepnet import find_steps
        >>> with torch.device('meta'):
        ...     steps = find_steps(resnet50(), torch.rand(1, 3, 224, 224))
        >>> print(steps[1])
        layer1.1: (1, 256, 56, 56), recorded
    """
    finder = Finder(unwrap(model))
    with finder.following():
        model(*inputs, **named)
    return Arrangement(finder).steps
