"""Runs for figures and the report: trajectories and accuracy."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mmstepnet.stiffness import DEFAULT_READING, Trajectories


@dataclass(frozen=True)
class Accuracy:
    """A run's accuracy, and what it is.

    Attributes:
        metric (str): Name of the metric, such as ``'accuracy/top1'``.
        value (float): Its value for the weights that were measured, or the
            next best thing that ``where`` tells.
        where (str): Which evaluation it is from.
        split (str): The data of that evaluation, such as ``'val'``.
    """

    metric: str
    value: float
    where: str
    split: str


@dataclass(frozen=True)
class Run:
    """One measured run.

    Attributes:
        label (str): Name in the figures, unique in a report.
        model (str): Runs of the same name are seeds of one model.
        trajectories (Trajectories): What was recorded of it.
        reading (str): Reading of NSI that is shown. Defaults to
            ``'adaptive'``.
        accuracy (Accuracy, optional): None where no log has one.
        source (str): Where it comes from, such as a file. Defaults to ``''``.
    """

    label: str
    model: str
    trajectories: Trajectories
    reading: str = DEFAULT_READING
    accuracy: Accuracy | None = None
    source: str = ''

    @property
    def nsi(self) -> np.ndarray:
        """NSI in the run's reading, (N, L)."""
        return self.trajectories.nsi(self.reading)

    @cached_property
    def tns(self) -> float:
        """Total neural stiffness in the run's reading."""
        return self.trajectories.tns(self.reading)

    @cached_property
    def tns_interval(self) -> tuple[float, float]:
        """95 % interval of TNS over samples."""
        return self.trajectories.tns_interval(self.reading)

    @cached_property
    def proportion(self) -> float:
        """Integral of the stiffness proportion in the run's reading."""
        return self.trajectories.proportion(self.reading)

    @property
    def adapts(self) -> bool:
        """Whether an attention value varies; a plain network's is 1."""
        return bool(self.trajectories.adaptive_blocks)

    @property
    def known_accuracy(self) -> Accuracy:
        """The accuracy of a run that has one."""
        assert self.accuracy is not None, self.label
        return self.accuracy

    @property
    def comparison(self) -> str:
        """Metric and data: runs that differ in it are not ranked."""
        accuracy = self.known_accuracy
        metric, split = accuracy.metric, accuracy.split
        measured = self.trajectories.settings['split']
        if split == measured:
            return f'{metric}, {split} split'
        return f'{metric}, {split} split; TNS, {measured} split'


def by_model(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs of each model, its seeds."""
    groups = {}
    for run in runs:
        groups.setdefault(run.model, []).append(run)
    return groups


def has_other_blocks(runs: Sequence[Run]) -> bool:
    """Whether the blocks of some runs cannot be laid over each other."""
    return len({run.trajectories.structure for run in runs}) > 1


def same_blocks(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Sets of runs whose blocks can be laid over each other.

    Returns:
        dict[str, list[Run]]: First every model with several runs (seeds),
        then all runs with the same blocks; the key tells which. No set is
        of one run, and no two are the same.
    """
    groups = {}
    for run in runs:
        for model in (run.model, ''):
            groups.setdefault((model, run.trajectories.structure), []).append(
                run
            )
    sets = {}
    for (model, _), members in sorted(
        groups.items(), key=lambda group: not group[0][0]
    ):
        if len(members) == 1 or members in sets.values():
            continue
        count = f'{len(members)} runs'
        blocks = len(members[0].trajectories.blocks)
        title = (
            f'{model}, {count}'
            if model
            else f'all runs with these {blocks} blocks ({count})'
        )
        while title in sets:
            title += ', other blocks'
        sets[title] = members
    return sets
