"""Names, stages and first blocks of the residual steps that were found."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import prod
from typing import NamedTuple

import torch.nn as nn

from ..generated import host_of
from .finder import Finder
from .selection import Selection, is_within, select
from .sums import Run, Sum

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
        alike (str, optional): Whether both must be of one ``'class'``, or
            also have ``'parts'`` of the same names.
        chained (bool): Whether the one must begin with a state that the other
            returned.
        listed (bool): Whether the container must be a list of modules.
    """

    alike: str | None
    chained: bool
    listed: bool


STAGE_RULES = (
    # CPUBone: a block is a list of wrappers of one class, which looks like a
    # stage. Blocks have parts of the same names, wrappers have not.
    StageRule('parts', chained=True, listed=True),
    # ResNet
    StageRule('class', chained=True, listed=True),
    # SHViT: two wrappers are attributes of one module. NASNet: a cell begins
    # with states of two others.
    StageRule('class', chained=False, listed=False),
    # A stage may be two blocks of different classes.
    StageRule(None, chained=True, listed=True),
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
        activation (str, optional): What becomes of the sum before the block
            hands it on, by PyTorch's name of the operation.
        left_out (str, optional): Why it is not recorded. None: it is.
    """

    name: str
    owner: str
    block: str | None
    stage: str | None
    shape: tuple[int, ...]
    gate: tuple[int, ...] | None
    activation: str | None
    left_out: str | None

    def __str__(self) -> str:
        more = ''.join(
            f', {key} {value}' for key, value in
            (('gate', self.gate), ('then', self.activation)) if value)
        return (f'{self.name}: {self.shape}{more}, '
                f'{self.left_out or "recorded"}')


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
        # Of a wrapper and what is in it, the latter.
        self.modules = {name: m for m, name in finder.names.items()}
        self.chosen = None if selection is None else select(
            self.modules, selection)
        self.scope = 'backbone.' if selection is None and isinstance(
            getattr(finder.model, 'backbone', None), nn.Module) else ''
        self._containers: dict[object, Container] = {}
        stepping = {s.owner for s in finder.sums if s.state}
        sums = [s for s in finder.sums if s.state
                or s.returned and s.owner not in stepping]
        places = {s: list(self._place(s)) for s in sums}
        blocks = self._blocks(places)
        if self.chosen is not None:
            self._choose(blocks, places)
        # Both are asked for each sum of each pass.
        self._firsts = {stage: self._first(stage)
                        for stage in {b.stage for b in blocks.values() if b}}
        self._steps_of: dict[Child, list[Sum]] = defaultdict(list)
        for found, block in blocks.items():
            if block is not None and found.state:
                self._steps_of[block].append(found)
        self._leave_out(blocks, [s for s in finder.sums if not s.state])
        self._build(blocks)

    def _choose(self, blocks: dict[Sum, Child | None],
                places: dict[Sum, list[Child]]) -> None:
        """Keep the chosen ones of the blocks, or what is chosen inside.

        A module that no rule knows as a block is one where it is chosen.
        """
        chosen = self.chosen or {}
        named = set().union(*chosen.values())
        for found, block in blocks.items():
            inside = next((p for p in places[found] if p.name in named and (
                block is None or is_within(p.name, {block.name}))), None)
            blocks[found] = inside or (
                block if block and is_within(block.name, named) else None)
        names = {block.name for block in blocks.values() if block}
        for item, meant in chosen.items() if names else ():
            if not any(is_within(name, meant) for name in names):
                raise ValueError(
                    f'blocks={item!r} chooses no block: there is no residual '
                    'step in what it matches, or in a part of it that is '
                    'chosen, too; find_steps shows where they are')

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
                    key, Child(name, run, parent))
                child.sums.append(found)
                child.returned |= run.returned
                yield child
                name = key = parent.name
                if name == run.outer.name or not is_within(
                        name, {run.outer.name}):
                    break
            run = run.outer

    def _container(self, outer: Run, name: str) -> Container:
        """The container of a module, with all its children that ran."""
        found = self._containers.get((outer, name))
        if found is None:
            found = self._containers[outer, name] = Container(name)
            found.children.update({
                run: Child(run.name, run, found, returned=set(run.returned))
                for run in outer.inner
                if run.name.rpartition('.')[0] == name})
        return found

    def _blocks(self, places: dict[Sum, list[Child]]
                ) -> dict[Sum, Child | None]:
        """The block of each sum by its stage, the surest stages first."""
        blocks: dict[Sum, Child | None] = dict.fromkeys(places)
        for rule in STAGE_RULES:
            for found, around in places.items():
                # A block that projects does so by itself.
                blocks[found] = blocks[found] or next(
                    (p for p in (around if found.state else around[:1])
                     if self._is_stage(p.stage, rule)), None)
            kinds = {self._kind(block.name)
                     for s, block in blocks.items() if block and s.state}
            for found, around in places.items():
                if not (found.state and blocks[found]):
                    # In a stage of one block, like those in others.
                    blocks[found] = next(
                        (p for p in around if self._kind(p.name) in kinds),
                        None)
        return blocks if any(blocks.values()) else self._alone(places)

    def _alone(self, places: dict[Sum, list[Child]]
               ) -> dict[Sum, Child | None]:
        """Blocks of one class, each alone in a list of its own (RTMDet)."""
        blocks = {
            s: next((p for p in around if isinstance(
                self.modules[p.stage.name], LISTS)), None)
            if s.state else None for s, around in places.items()}
        lists = Counter(p.stage for p in {*blocks.values()} if p)
        kinds = Counter(self._kind(p.name) for p in {*blocks.values()}
                        if p and lists[p.stage] == 1)
        return {s: p if p and lists[p.stage] == 1
                and kinds[self._kind(p.name)] > 1 else None
                for s, p in blocks.items()}

    def _is_stage(self, container: Container, rule: StageRule) -> bool:
        if rule not in container.is_stage:
            container.is_stage[rule] = (
                not rule.listed
                or isinstance(self.modules[container.name], LISTS)
            ) and any(
                self._are_blocks(found, child, other, rule)
                for child in container.children.values()
                for found in child.sums if found.state and not found.left_out
                for other in container.children.values())
        return container.is_stage[rule]

    def _are_blocks(self, found: Sum, child: Child, other: Child,
                    rule: StageRule) -> bool:
        """Whether a child with a step and another one make a stage."""
        kind, alike = self._kind(other.name), rule.alike
        if other is child or alike and kind is not self._kind(child.name):
            return False
        if not rule.chained and other.name == child.name:
            return False  # it runs again, on another input
        if not other.sums and (not alike or kind in LISTS):
            return False
        one_shape = any(s.shape == found.shape for s in other.sums)
        if not one_shape and (other.sums or not rule.chained):
            return False
        if rule.chained and found.state not in other.returned:
            return False
        # Lists are alike only if what is in them is.
        return alike != 'parts' and not (alike and kind in LISTS) or (
            self._parts(other) == self._parts(child))

    def _kind(self, name: str) -> type:
        return host_of(self.modules.get(name))

    def _parts(self, child: Child) -> list[str]:
        return [n for n, _ in self.modules[child.name].named_modules()]

    def _first(self, container: Container) -> Child | None:
        """The first block of a stage, if it holds a sum.

        It is a stage's first child that holds one or is of the class of one
        that does, as a first block that only makes the stage's state. A block
        that stands alone and projects no identity is no first one (a reading:
        the paper leaves out what begins a stage of several blocks).
        """
        holders = [c for c in container.children.values() if c.sums]
        names = {c.name for c in holders}
        kinds = {self._kind(c.name) for c in holders
                 if any(s.state for s in c.sums)}
        blocks = [
            name for part in self.modules[container.name]._modules
            if (name := f'{container.name}.{part}'.lstrip('.')) in names
            or self._kind(name) in kinds]
        if len(blocks) == len(holders) == 1 and not projects(
                holders[0].sums):
            return None
        first = blocks[0] if blocks else holders[0].name
        return next((c for c in holders if c.name == first), None)

    def _leave_out(self, blocks: dict[Sum, Child | None],
                   projecting: list[Sum]) -> None:
        """Say why steps are not recorded, by the first rule that holds."""
        for found, block in blocks.items():
            if found.left_out:
                continue
            if block is None:
                found.left_out = ALONE if self.chosen is None else (
                    'not chosen by blocks=')
            elif not found.owner.name.startswith(self.scope):
                found.left_out = OUTSIDE
            elif any(map(found.is_in_branch_of, self._steps_of[block])) or (
                    any(found.is_in_branch_of(s) and is_within(
                        s.owner.name, {block.name}) for s in projecting)
                    and not self._is_returned_state(found, block)):
                found.left_out = 'part of the branch of another step'
            elif self._firsts[block.stage] is block:
                found.left_out = FIRST

    def _is_returned_state(self, found: Sum, block: Child) -> bool:
        """Whether a block returns what became of a sum as a state.

        TNT's blocks do so with their pixels, which they also project.
        """
        numbers = {found.number}
        for later in self._steps_of[block]:
            if later.state in numbers:
                numbers.add(later.number)
        return not numbers.isdisjoint(block.run.returned)

    def _build(self, blocks: dict[Sum, Child | None]) -> None:
        self.named, self.recorded, self.excluded = [], [], []
        runs: dict[str, list[Sum]] = defaultdict(list)
        for found, block in blocks.items():
            name = found.owner.name
            if block is not None:
                name = self._name(found, block)
                if found.left_out == FIRST or (
                        not found.state
                        and self._firsts[block.stage] is block):
                    self.excluded.append(block.name)
            if found.left_out in (None, FIRST):
                runs[name].append(found)
                if len(runs[name]) > 1:  # a block that runs several times
                    name = f'{name}#{len(runs[name])}'
            self.named.append((name, found, block))
            if not found.left_out:
                self.recorded.append((name, found, block))
        self.excluded = list(dict.fromkeys(self.excluded))
        self.without = self._blocks_without_sum(
            [block for block in blocks.values() if block])
        self._later = [[s for s in r[1:] if not s.of_state >> r[0].number & 1]
                       for r in runs.values()]
        self.repeated = bool(runs) and all(self._later)

    def _blocks_without_sum(self, blocks: list[Child]) -> list[Child]:
        """Children of stages that look like blocks and add to no state."""
        kinds = {self._kind(block.name) for block in blocks} - {*LISTS}
        stages = sorted({b.stage for b in blocks}, key=lambda c: c.name)
        return list({child.name: child for stage in stages
                     for child in stage.children.values()
                     if not child.sums and child.run.keeps_shape
                     and self._kind(child.name) in kinds}.values())

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
                name, s.owner.name, block and block.name,
                block and block.stage.name, s.shape, s.gate, s.activation,
                s.left_out)
            for name, s, block in self.named
        ] + [
            FoundStep(block.name, block.name, block.name, block.stage.name,
                      (), None, None, NO_SUM) for block in self.without]

    def _name(self, found: Sum, block: Child) -> str:
        """Name of a block, and of its step if it has several."""
        steps = [s for s in self._steps_of[block]
                 if s.left_out in (None, FIRST)]
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


def projects(sums: Sequence[Sum]) -> bool:
    """Whether a block projects its identity, which a ResidualStep may hide.

    Such a step reports a state that the block never received.
    """
    sums = [s for s in sums if not any(map(s.is_in_branch_of, sums))]
    first = sums[0]
    return not all(s.state for s in sums) or first.part is not None and (
        not first.owner.given >> first.state & 1)
