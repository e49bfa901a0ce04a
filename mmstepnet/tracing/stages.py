"""Which residual steps a model has: their names, stages and first blocks."""

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
from .sums import Run, Sum
from .wrappers import unwrap

LISTS = nn.Sequential, nn.ModuleList, nn.ModuleDict

ALONE = 'no container'
FIRST = 'first of its stage'
OUTSIDE = 'outside of the backbone'
NO_SUM = 'no addition to its state was seen'


class StageRule(NamedTuple):
    """What makes a container a stage.

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
    """A residual step of a model, or what might be taken for one.

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
    """A child of a container, in one run of what encloses it."""

    name: str
    run: Run
    stage: 'Container'
    sums: list[Sum] = field(default_factory=list)
    returned: set[int] = field(default_factory=set)


@dataclass(eq=False)
class Container:
    """What may be a stage, in one run of what encloses it."""

    name: str
    children: dict[object, Child] = field(default_factory=dict)
    is_stage: dict[StageRule, bool] = field(default_factory=dict)


class Arrangement:
    """Steps of one pass in their blocks and stages.

    Args:
        finder (Finder): What has followed the pass.
        selection (Selection, optional): Blocks, see :func:`select`.

    Attributes:
        named (list[tuple]): All sums: name, sum, and block if there is one.
        recorded (list[tuple]): Likewise what is recorded.
        without (list[Child]): Blocks without any sum: they may add in a way
            that is not seen.
        excluded (list[str]): Names of the blocks left out as first ones.
        repeated (bool): Whether all steps ran again on other states than
            those that they had made: the whole network on other inputs.
    """

    def __init__(self, finder: Finder, selection: Selection | None = None):
        self.finder, self.modules = finder, finder.modules
        self.chosen = (
            None
            if selection is None
            else set().union(*select(self.modules, selection).values())
        )
        self.scope = (
            'backbone.'
            if selection is None
            and isinstance(getattr(finder.model, 'backbone', None), nn.Module)
            else ''
        )
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
        for found, block in blocks.items():
            if block is not None and found.state:
                self._steps_of[block].append(found)
        self._leave_out(blocks, [s for s in finder.sums if not s.state])
        self._build(blocks)

    def _choose(
        self, blocks: dict[Sum, Child | None], places: dict[Sum, list[Child]]
    ) -> None:
        """Keep the chosen ones of the blocks, or what is chosen inside.

        A module that no rule knows as a block is one where it is chosen.
        """
        chosen = self.chosen or set()
        for found, block in blocks.items():
            inside = next(
                (
                    p
                    for p in places[found]
                    if p.name in chosen
                    and (block is None or is_within(p.name, {block.name}))
                ),
                None,
            )
            blocks[found] = inside or (
                block if block and is_within(block.name, chosen) else None
            )

    def _place(self, found: Sum) -> Iterator[Child]:
        """Modules around a sum, from inside, as children of what is around.

        Lists, which do not run, stand between a run and the next outer one.
        """
        run = found.owner
        while run.outer is not None:
            name: str = run.name
            key: object = run
            while name:
                parent = self._container(run.outer, name.rpartition('.')[0])
                child = parent.children.setdefault(
                    key, Child(name, run, parent)
                )
                child.sums.append(found)
                child.returned |= run.returned
                yield child
                name = key = parent.name
                if name == run.outer.name or not is_within(
                    name, {run.outer.name}
                ):
                    break
            run = run.outer

    def _container(self, outer: Run, name: str) -> Container:
        """The container of a module, with all its children that ran."""
        found = self._containers.get((outer, name))
        if found is None:
            found = self._containers[outer, name] = Container(name)
            found.children.update(
                {
                    run: Child(
                        run.name, run, found, returned=set(run.returned)
                    )
                    for run in outer.inner
                    if run.name.rpartition('.')[0] == name
                }
            )
        return found

    def _blocks(
        self, places: dict[Sum, list[Child]]
    ) -> dict[Sum, Child | None]:
        """The block of each sum by its stage, the surest stages first."""
        blocks: dict[Sum, Child | None] = dict.fromkeys(places)
        for rule in STAGE_RULES:
            for found, around in places.items():
                blocks[found] = blocks[found] or next(
                    (p for p in around if self._is_stage(p.stage, rule)), None
                )
            kinds = {
                self._kind(block.name)
                for s, block in blocks.items()
                if block and s.state
            }
            for found, around in places.items():
                if not (found.state and blocks[found]):
                    # In a stage of one block, like those in others.
                    blocks[found] = next(
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
                self._are_blocks(found, child, other, rule)
                for child in container.children.values()
                for found in child.sums
                if found.state
                for other in container.children.values()
            )
        return container.is_stage[rule]

    def _are_blocks(
        self, found: Sum, child: Child, other: Child, rule: StageRule
    ) -> bool:
        """Whether a child with a step and another one make a stage."""
        kind = self._kind(other.name)
        if other is child or (
            rule.alike and kind is not self._kind(child.name)
        ):
            return False
        one_shape = any(s.shape == found.shape for s in other.sums)
        if not rule.listed:
            if not one_shape or other.name == child.name:  # it runs again
                return False
        elif (
            found.state not in other.returned
            or not one_shape
            and (other.sums or not rule.alike)
        ):
            return False
        # Lists are alike only if what is in them is.
        if not rule.parts and (kind not in LISTS or not rule.alike):
            return True
        a, b = (
            [name for name, _ in self.modules[c.name].named_modules()]
            for c in (child, other)
        )
        return a == b

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
        names = {c.name for c in holders}
        kinds = {
            self._kind(c.name) for c in holders if any(s.state for s in c.sums)
        }
        blocks = [
            name
            for part in self.modules[container.name]._modules
            if (name := f'{container.name}.{part}'.lstrip('.')) in names
            or self._kind(name) in kinds
        ]
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

    def _leave_out(
        self, blocks: dict[Sum, Child | None], projecting: list[Sum]
    ) -> None:
        """Say why steps are not recorded, by the first rule that holds."""
        for found, block in blocks.items():
            if found.left_out:
                continue
            if block is None:
                found.left_out = (
                    ALONE if self.chosen is None else ('not chosen by blocks=')
                )
            elif not found.owner.name.startswith(self.scope):
                found.left_out = OUTSIDE
            elif any(map(found.is_in_branch_of, self._steps_of[block])) or any(
                found.is_in_branch_of(s)
                and is_within(s.owner.name, {block.name})
                for s in projecting
            ):
                found.left_out = 'part of the branch of another step'
            elif self._firsts[block.stage] is block:
                found.left_out = FIRST

    def _build(self, blocks: dict[Sum, Child | None]) -> None:
        self.named, self.recorded, self.excluded = [], [], []
        runs: dict[str, list[Sum]] = defaultdict(list)
        for found, block in blocks.items():
            name = self._name(found, block) if block else found.owner.name
            if block and (
                found.left_out == FIRST
                or (not found.state and self._firsts[block.stage] is block)
            ):
                self.excluded.append(block.name)
            if found.left_out in (None, FIRST):
                runs[name].append(found)
                if len(runs[name]) > 1:  # a block that runs several times
                    name = f'{name}#{len(runs[name])}'
            self.named.append((name, found, block))
            if not found.left_out:
                self.recorded.append((name, found, block))
        self.excluded = list(dict.fromkeys(self.excluded))
        # Of a block's class, beside it, and of a state of one shape all along.
        self.without = list(
            {
                child.name: child
                for block in blocks.values()
                if block
                for child in block.stage.children.values()
                if not child.sums
                and child.run.shapes
                and self._kind(child.name) is self._kind(block.name)
                and self._kind(child.name) not in LISTS
            }.values()
        )
        self._later = [
            [s for s in r[1:] if not s.of_state >> r[0].number & 1]
            for r in runs.values()
        ]
        self.repeated = bool(runs) and all(self._later)

    def take_first_pass(self) -> None:
        """Leave out what ran again, where the network is :attr:`repeated`."""
        for found in chain(*self._later):
            found.left_out = 'runs again, on another input'
        self.recorded = [r for r in self.recorded if not r[1].left_out]

    @property
    def steps(self) -> list[FoundStep]:
        """All that was found, in the order of the pass."""
        return [
            FoundStep(
                name,
                s.owner.name,
                block and block.name,
                block and block.stage.name,
                s.shape,
                s.gate,
                s.left_out,
            )
            for name, s, block in self.named
        ] + [
            FoundStep(c.name, c.name, c.name, c.stage.name, (), None, NO_SUM)
            for c in self.without
        ]

    def explain(self) -> str:
        """What was seen where nothing can be recorded."""
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
        alone = self._alike(
            [
                found
                for _, found, _ in self.named
                if found.state and found.left_out == ALONE
            ]
        )
        table: dict[str, list[Sum]] = defaultdict(list)
        for _, found, block in self.named:
            if (
                found in alone
                or found.state
                and block
                and (found.left_out in (None, FIRST, OUTSIDE))
            ):
                table[block.name if block else found.owner.name].append(found)
        return table

    def _name(self, found: Sum, block: Child) -> str:
        """Name of a block, and of its step if it has several."""
        steps = [
            s for s in self._steps_of[block] if s.left_out in (None, FIRST)
        ]
        if len(steps) < 2 or found not in steps:
            return block.name
        if found.part is not None:
            return f'{block.name}.{found.part}'
        place = steps.index(found)
        if len(steps) == 2 and prod(steps[0].shape) == prod(steps[1].shape):
            return f'{block.name}.{("attn_step", "mlp_step")[place]}'
        owner = found.owner.name
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
