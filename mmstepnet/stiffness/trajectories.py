"""One recording: the feature trajectories of N samples at L blocks."""

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from html import escape
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from mmstepnet.checks import check_choice
from mmstepnet.files import write_whole
from mmstepnet.version import __version__

from .correlations import row_correlations, rows_vary
from .readings import DEFAULT_READING, FIELDS, READINGS
from .total import (
    block_stiffness,
    total_neural_stiffness,
    total_stiffness_proportion,
)

SETTINGS = ('model', 'split', 'reading', 'dataset_size')
"""Settings that every recording has."""

DRAWS = 2000
"""Of the bootstrap of TNS over samples."""


@dataclass(frozen=True, eq=False, repr=False)
class Trajectories:
    """What was recorded of N samples at L blocks.

    :meth:`TrajectoryRecorder.trajectories` makes one, :meth:`load` reads
    one. ``dataclasses.replace`` gives it other settings.

    TNS compares networks whose NSI is measured alike. Where the attention is
    part of f (IEBN, whose gates stand in the block's norms), every reading
    has the gate inside f and Δt = 1: its TNS does not compare with that of
    attentions that give Δt.

    Attributes:
        adaptive (ndarray): NSI with the attention value as Δt, (N, L).
        unit (ndarray): NSI with Δt = 1, (N, L).
        returned (ndarray): NSI of what the blocks return, (N, L).
        x_norm (ndarray): Norms of the states x_t, (N, L).
        f_norm (ndarray): Norms of f(x_t), (N, L).
        step_mean (ndarray): Mean attention value, (N, L); 1 in plain blocks.
        stages (ndarray): Stage of each block, integers, (L,).
        blocks (list[str]): Names of the L blocks.
        excluded (list[str]): Blocks left out, the first of each stage.
        settings (dict): How it was recorded: ``model``, ``split``,
            ``reading`` (the one that is shown first), ``dataset_size``;
            ``epoch``, ``iter``, ``weights`` and ``metrics`` where known.

    Raises:
        ValueError: Arrays do not fit together or hold impossible values, or
            a setting is missing.
    """

    adaptive: np.ndarray
    unit: np.ndarray
    returned: np.ndarray
    x_norm: np.ndarray
    f_norm: np.ndarray
    step_mean: np.ndarray
    stages: np.ndarray
    blocks: list[str]
    excluded: list[str]
    settings: Mapping[str, Any]

    def __post_init__(self):
        for name in (*FIELDS, 'stages'):
            value = np.array(
                getattr(self, name), np.float32 if name in FIELDS else None)
            value.flags.writeable = False
            object.__setattr__(self, name, value)
        for name in ('blocks', 'excluded'):
            object.__setattr__(self, name, list(map(str, getattr(self, name))))
        self._check()

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.adaptive)

    def __repr__(self) -> str:
        """Three lines: samples and blocks, TNS, the stiffest blocks."""
        return '\n'.join(': '.join(row) for row in self._summary())

    def _repr_html_(self) -> str:
        """A small table, for notebooks."""
        rows = ''.join(
            f'<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>'
            for name, value in self._summary())
        return f'<table>{rows}</table>'

    def _summary(self) -> list[tuple[str, str]]:
        reading = self.settings['reading']
        low, high = self.tns_interval(reading)
        tns = (f'{self.tns(reading):.4g}, 95 % over samples {low:.4g} to '
               f'{high:.4g}')
        if self.single_block_stages:
            tns = ('0 by definition, because one block a stage is counted; '
                   f'{self.tns(reading, "all"):.4g} with the mean of all '
                   'blocks')
        return [
            (f'{self.settings["model"]} ({self.settings["split"]})',
             f'{len(self)} samples, {len(self.blocks)} blocks'),
            (f'TNS, {reading}', tns),
            ('stiffest blocks', ', '.join(
                f'{name} (NSI {nsi:.3g})' for name, _, nsi in
                self.stiffest_blocks(3, reading)))]

    def nsi(self, reading: str = DEFAULT_READING) -> np.ndarray:
        """NSI in a reading, (N, L).

        Args:
            reading (str): ``'adaptive'``, ``'unit'`` or ``'returned'``.
                Defaults to ``'adaptive'``.
        """
        check_choice('reading', reading, READINGS)
        return getattr(self, reading)

    def tns(self, reading: str = DEFAULT_READING, mu: str = 'stage') -> float:
        """Total neural stiffness of the data set, the mean over samples.

        See :func:`~mmstepnet.stiffness.total_neural_stiffness`.

        Args:
            reading (str): Reading of NSI. Defaults to ``'adaptive'``.
            mu (str): ``'stage'`` or ``'all'``. Defaults to ``'stage'``.
        """
        return float(
            total_neural_stiffness(self.nsi(reading), self.stages, mu).mean())

    def tns_interval(self, reading: str = DEFAULT_READING,
                     mu: str = 'stage') -> tuple[float, float]:
        """95 % interval of TNS over samples, by a percentile bootstrap.

        As many samples as were recorded are drawn from them with replacement,
        :data:`DRAWS` times, always by the same random numbers. The interval
        says how far other samples of the same data would move TNS, and
        nothing of other seeds of the training. One sample gives its own TNS
        twice. See :meth:`tns` for the arguments.

        Returns:
            tuple[float, float]: Lower and upper end.
        """
        each = total_neural_stiffness(self.nsi(reading), self.stages, mu)
        generator = np.random.default_rng(0)
        means = [each[generator.integers(len(each), size=len(each))].mean()
                 for _ in range(DRAWS)]
        low, high = np.percentile(means, (2.5, 97.5))
        return float(low), float(high)

    def proportion(self,
                   reading: str = DEFAULT_READING,
                   mu: str = 'stage') -> float:
        """Integral of the stiffness proportion, the mean over samples.

        See :func:`~mmstepnet.stiffness.total_stiffness_proportion`, and
        :meth:`tns` for the arguments.
        """
        return float(
            total_stiffness_proportion(
                self.nsi(reading), self.stages, mu).mean())

    def stiffest_blocks(self, k: int = 5, reading: str = DEFAULT_READING
                        ) -> list[tuple[str, float, float]]:
        """The blocks that are stiffest over all thresholds.

        Args:
            k (int): How many. Defaults to 5.
            reading (str): Reading of NSI. Defaults to ``'adaptive'``.

        Returns:
            list[tuple]: Name, :func:`~mmstepnet.stiffness.block_stiffness`
            and mean NSI of each, the stiffest first.
        """
        nsi = self.nsi(reading)
        stiffness = block_stiffness(nsi, self.stages)
        order = np.argsort(-stiffness, kind='stable')[:k]
        return [(self.blocks[i], float(stiffness[i]), float(nsi[:, i].mean()))
                for i in order]

    def table(self) -> dict[str, list]:
        """One row a sample and block, by columns, as pandas takes it.

        Example:
            >>> import torch
            >>> from torchvision.models import resnet18
            >>> from mmstepnet import measure_stiffness
            >>> found = measure_stiffness(resnet18(),
            ...                           [torch.rand(2, 3, 64, 64)])
            >>> table = found.table()     # pandas.DataFrame(table)
            >>> table['sample'], table['block'][:2]
            ([0, 0, 0, 0, 1, 1, 1, 1], ['layer1.1', 'layer2.1'])
        """
        return dict(
            sample=np.repeat(np.arange(len(self)), len(self.blocks)).tolist(),
            block=self.blocks * len(self),
            stage=self.stages.tolist() * len(self),
            **{name: getattr(self, name).ravel().tolist() for name in FIELDS})

    def block_correlations(self,
                           reading: str = DEFAULT_READING) -> np.ndarray:
        """Correlation of NSI and attention value over samples, (L,).

        NaN marks a block where one of them is constant.
        """
        return row_correlations(self.nsi(reading).T, self.step_mean.T)

    def trajectory_correlations(
            self, reading: str = DEFAULT_READING) -> dict[str, np.ndarray]:
        """Correlation of NSI and attention value along each trajectory.

        Returns:
            dict[str, ndarray]: For each stage with at least three recorded
            blocks, and for all blocks together, those of the N samples that
            have one. A name without any is left out.
        """
        parts = {
            name: self.stages == stage
            for stage, name in self.stage_names.items()
        }
        parts['all stages'] = np.ones(len(self.stages), bool)
        found = {}
        for name, blocks in parts.items():
            values = row_correlations(
                self.nsi(reading)[:, blocks], self.step_mean[:, blocks])
            if not np.isnan(values).all():
                found[name] = values[~np.isnan(values)]
        return found

    @cached_property
    def adaptive_blocks(self) -> list[int]:
        """Places of the blocks whose attention value varies."""
        return np.flatnonzero(rows_vary(self.step_mean.T)).tolist()

    def band(self, reading: str = DEFAULT_READING) -> np.ndarray:
        """NSI over samples: mean, 10 % and 90 % quantile, (3, L)."""
        nsi = self.nsi(reading)
        return np.vstack([nsi.mean(0), np.quantile(nsi, (0.1, 0.9), axis=0)])

    def stage_nsi(self, reading: str = DEFAULT_READING) -> list[float]:
        """Mean NSI of each stage, in the order of the blocks."""
        nsi = self.nsi(reading)
        return [
            float(nsi[:, self.stages == stage].mean(dtype=np.float64))
            for stage in dict.fromkeys(self.stages.tolist())
        ]

    @cached_property
    def stage_names(self) -> dict[int, str]:
        """Name of each recorded stage, in the order of the blocks."""
        return {stage: f'stage {n}' for n, stage in enumerate(
            dict.fromkeys(self.stages.tolist()), 1)}

    @property
    def structure(self) -> tuple:
        """Equal for recordings whose blocks can be laid over each other."""
        return (*self.blocks, *self.stages.tolist())

    @property
    def single_block_stages(self) -> bool:
        """Whether every stage has one block, so that TNS is 0 by definition.

        It is under ``mu='stage'`` alone.
        """
        return len(set(self.stages.tolist())) == len(self.stages)

    def save(self, path: str | Path) -> None:
        """Write a file: wholly, or not at all.

        It holds arrays by the names of the attributes, names as text, the
        settings as JSON with the version of this package as ``mmstepnet``:
        paths in them as text, numbers of NumPy as numbers.

        Args:
            path (str | Path): File name, ending in ``.npz``. Its folder is
                made.

        Raises:
            ValueError: The file name ends otherwise.
            TypeError: The settings hold what JSON cannot.
        """
        path = Path(path)
        if path.suffix != '.npz':
            raise ValueError(f'a recording is named *.npz, got {path}')
        arrays = {f.name: getattr(self, f.name) for f in fields(self)}
        for name in ('blocks', 'excluded'):
            arrays[name] = np.array(arrays[name], np.str_)
        arrays['settings'] = np.array(
            json.dumps({**self.settings, 'mmstepnet': __version__},
                       default=_plain))
        content = io.BytesIO()
        np.savez_compressed(content, **arrays)
        write_whole(path, content.getvalue())

    @classmethod
    def load(cls, path: str | Path) -> 'Trajectories':
        """Read a file that :meth:`save` wrote, of this or an older version.

        Args:
            path (str | Path): The file, ``stiffness_*.npz``.

        Raises:
            FileNotFoundError: There is no such file.
            ValueError: The file is damaged or is no recording; the message
                says what is wrong with it.
        """
        try:
            with np.load(path, allow_pickle=False) as file:
                values = {f.name: file[f.name] for f in fields(cls)}
            values['settings'] = json.loads(str(values['settings']))
            return cls(**values)
        except FileNotFoundError:
            raise
        except Exception as error:  # zip, zlib, NumPy and JSON have many
            raise ValueError(f'{path} is damaged or no recording of '
                             f'stiffness: {error}') from error

    def _check(self) -> None:
        missing = [name for name in SETTINGS if name not in self.settings]
        if missing:
            raise ValueError(f'settings lack {", ".join(missing)}')
        check_choice('reading', self.settings['reading'], READINGS)
        shape = self.adaptive.shape
        if len(shape) != 2 or 0 in shape:
            raise ValueError('fields must be (N, L) with a sample and a block '
                             f'or more, got {shape}; is the data set empty?')
        for name in FIELDS:
            value = getattr(self, name)
            if value.shape != shape or not np.isfinite(value).all() or (
                    name != 'step_mean' and value.min() < 0):
                raise ValueError(f'{name} must be {shape} finite numbers, of '
                                 f'norms not below 0, got {value!r}')
        if self.stages.shape != shape[1:] or self.stages.dtype.kind not in (
                'iu') or len(self.blocks) != shape[1]:
            raise ValueError(
                f'stages and blocks must be {shape[1]} integers and names, '
                f'got {self.stages!r} and {self.blocks}')


def _plain(value: Any) -> Any:
    """A setting that JSON does not know, as one that it does."""
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f'settings of a recording are text, numbers, lists and '
                    f'dicts of them, got {value!r}')
