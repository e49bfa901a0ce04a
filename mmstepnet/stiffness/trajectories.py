"""One recording: the feature trajectories of N samples at L blocks."""

import io
import json
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from mmstepnet.checks import check_choice
from mmstepnet.files import write_whole
from mmstepnet.version import __version__

from . import total
from .checks import check_shape, check_trajectories, to_float64
from .correlations import row_correlations, rows_vary
from .readings import DEFAULT_READING, FIELDS, READINGS

SETTINGS = ('model', 'split', 'reading', 'dataset_size')
"""Settings that every recording has."""

DRAWS = 2000
"""Of the bootstrap of TNS over samples."""

STEP = re.compile(r'(\w+_)?step(_?\d+)?')
"""How a step of a block that takes several is called behind the block."""


@dataclass(frozen=True, eq=False, repr=False)
class Trajectories:
    """A recording of N samples at L blocks.

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
        if not self.settings.keys() >= {*SETTINGS}:
            raise ValueError(f'settings must have {", ".join(SETTINGS)}')
        check_choice('reading', self.settings['reading'], READINGS)
        values: dict[str, Any] = {}
        for name in (*FIELDS, 'stages'):
            dtype = np.float32 if name in FIELDS else None
            values[name] = np.array(getattr(self, name), dtype)
        *tensors, stages = to_float64(**values)[0]
        for name, t in zip(FIELDS, tensors):
            check_shape(name, t, tensors[0].shape)
            values[name].flags.writeable = False
        for t in tensors[: len(READINGS)]:
            check_trajectories(t, stages)
        for name in ('blocks', 'excluded'):
            values[name] = list(map(str, getattr(self, name)))
        if len(values['blocks']) != len(stages):
            raise ValueError(
                f'{len(stages)} blocks need as many names, got {self.blocks}'
            )
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.adaptive)

    def __repr__(self) -> str:
        """Samples and blocks, TNS, the stiffest blocks; a line each."""
        return '\n'.join(': '.join(row) for row in self._summary())

    def _repr_html_(self) -> str:
        """A small table, for notebooks."""
        rows = ''.join(
            f'<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>'
            for name, value in self._summary()
        )
        return f'<table>{rows}</table>'

    def _summary(self) -> list[tuple[str, str]]:
        reading = self.settings['reading']
        low, high = self.tns_interval(reading)
        tns = (
            f'{self.tns(reading):.4g}, 95 % over samples {low:.4g} to '
            f'{high:.4g}'
        )
        if self.single_block_stages:
            tns = (
                '0 by definition, because one block a stage is counted; '
                f'{self.tns(reading, "all"):.4g} with the mean of all '
                'blocks'
            )
        if not self.nsi(reading).any():
            tns = '0, because every branch f is 0: do norms start at zero?'
        return [
            (
                f'{self.settings["model"]} ({self.settings["split"]})',
                f'{len(self)} samples, {len(self.blocks)} blocks',
            ),
            (f'TNS, {reading}', tns),
            *(
                (
                    f'stiffest of {kind}' if kind else 'stiffest blocks',
                    ', '.join(
                        f'{name} (stiffness {score:.3g}, NSI {nsi:.3g})'
                        for name, score, nsi in self.stiffest_blocks(
                            3, reading, kind
                        )
                    ),
                )
                for kind in self.kinds
            ),
        ]

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
            total.total_neural_stiffness(
                self.nsi(reading), self.stages, mu
            ).mean()
        )

    def tns_interval(
        self, reading: str = DEFAULT_READING, mu: str = 'stage'
    ) -> tuple[float, float]:
        """95 % interval of TNS over samples, by a percentile bootstrap.

        As many samples as were recorded are drawn from them with replacement,
        :data:`DRAWS` times, always by the same random numbers. The interval
        says how far other samples of the same data would move TNS, and
        nothing of other seeds of the training. One sample gives its own TNS
        twice. See :meth:`tns` for the arguments.

        Returns:
            tuple[float, float]: Lower and upper end.
        """
        each = total.total_neural_stiffness(self.nsi(reading), self.stages, mu)
        generator = np.random.default_rng(0)
        means = [
            each[generator.integers(len(each), size=len(each))].mean()
            for _ in range(DRAWS)
        ]
        low, high = np.percentile(means, (2.5, 97.5))
        return float(low), float(high)

    def proportion(
        self, reading: str = DEFAULT_READING, mu: str = 'stage'
    ) -> float:
        """Integral of the stiffness proportion, the mean over samples.

        See :func:`~mmstepnet.stiffness.total_stiffness_proportion`, and
        :meth:`tns` for the arguments.
        """
        return float(
            total.total_stiffness_proportion(
                self.nsi(reading), self.stages, mu
            ).mean()
        )

    def stiffest_blocks(
        self,
        k: int = 5,
        reading: str = DEFAULT_READING,
        kind: str | None = None,
    ) -> list[tuple[str, float, float]]:
        """The blocks that are stiffest over all thresholds.

        Beside the mean of their stage, or of all blocks where each stage has
        one. Among the steps of one kind, the mean is of that kind: beside
        that of both, the kind with the smaller branches would be stiff
        nowhere.

        Args:
            k (int): How many. Defaults to 5.
            reading (str): Reading of NSI. Defaults to ``'adaptive'``.
            kind (str, optional): One of :attr:`kinds`. None is all blocks.
                Defaults to None.

        Returns:
            list[tuple]: Name, :func:`~mmstepnet.stiffness.block_stiffness`
            and mean NSI of each, the stiffest first.
        """
        places = [*range(len(self.blocks))]
        if kind is not None:
            check_choice('kind', kind, [*self.kinds])
            places = self.kinds[kind]
        nsi, stages = self.nsi(reading)[:, places], self.stages[places]
        is_single = len({*stages.tolist()}) == len(stages)
        stiffness = total.block_stiffness(
            nsi, stages, 'all' if is_single else 'stage'
        )
        order = np.argsort(-stiffness, kind='stable')[:k]
        return [
            (
                self.blocks[places[i]],
                float(stiffness[i]),
                float(nsi[:, i].mean()),
            )
            for i in order
        ]

    def block_correlations(self, reading: str = DEFAULT_READING) -> np.ndarray:
        """Correlation of NSI and attention value over samples, (L,).

        NaN marks a block where one of them is constant.
        """
        return row_correlations(self.nsi(reading).T, self.step_mean.T)

    def trajectory_correlations(
        self, reading: str = DEFAULT_READING
    ) -> dict[str, np.ndarray]:
        """Correlation of NSI and attention value along each trajectory.

        Returns:
            dict[str, ndarray]: For each stage with at least three recorded
            blocks, and for all blocks together, those of the N samples that
            have one. A name without any is left out.
        """
        parts = {}
        for stage, name in self.stage_names.items():
            parts[name] = self.stages == stage
        parts['all stages'] = np.full(len(self.stages), True)
        correlations = {}
        for name, blocks in parts.items():
            values = row_correlations(
                self.nsi(reading)[:, blocks], self.step_mean[:, blocks]
            )
            if not np.isnan(values).all():
                correlations[name] = values[~np.isnan(values)]
        return correlations

    @cached_property
    def adaptive_blocks(self) -> list[int]:
        """Places of the blocks whose attention value varies."""
        return np.flatnonzero(rows_vary(self.step_mean.T)).tolist()

    @cached_property
    def kinds(self) -> dict[str, list[int]]:
        """Places of the steps of each kind, in the order of the blocks.

        A Transformer's blocks take two steps, ``'attn_step'`` and
        ``'mlp_step'``. Blocks that take one are of the kind ``''``, as are
        all steps where there is one kind.
        """
        kinds: dict[str, list[int]] = defaultdict(list)
        for place, name in enumerate(self.blocks):
            end = name.rpartition('.')[2].partition('#')[0]
            kinds[end if STEP.fullmatch(end) else ''].append(place)
        if len(kinds) == 1:
            return {'': [*range(len(self.blocks))]}
        return dict(kinds)

    @cached_property
    def stage_names(self) -> dict[int, str]:
        """Name of each recorded stage, in the order of the blocks."""
        return {
            stage: f'stage {n}'
            for n, stage in enumerate(dict.fromkeys(self.stages.tolist()), 1)
        }

    def stage_nsi(self, reading: str = DEFAULT_READING) -> list[float]:
        """Mean NSI of each stage, in the order of the blocks."""
        nsi = self.nsi(reading)
        return [
            float(nsi[:, self.stages == stage].mean(dtype=np.float64))
            for stage in self.stage_names
        ]

    @property
    def checkpoint(self) -> tuple[str, int | str]:
        """The unit of the checkpoints of its training, and its own number.

        ``('epoch', 3)``, ``('iter', 300)`` or ``('weights', 'last.pth')``;
        two times ``''`` where the settings have none of them.
        """
        for unit in ('epoch', 'iter', 'weights'):
            if unit in self.settings:
                return unit, self.settings[unit]
        return '', ''

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
        numbers and arrays of NumPy as numbers, what JSON does not know as
        text.

        Args:
            path (str | Path): File name, ``*.npz``. Its folder is made.
        """
        arrays = {f.name: getattr(self, f.name) for f in fields(self)}
        for name in ('blocks', 'excluded'):
            arrays[name] = np.array(arrays[name], np.str_)
        arrays['settings'] = np.array(
            json.dumps(
                {**self.settings, 'mmstepnet': __version__},
                default=lambda v: (
                    v.tolist()
                    if isinstance(v, np.generic | np.ndarray)
                    else str(v)
                ),
            )
        )
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
            raise ValueError(
                f'{path} is damaged or no recording of stiffness: {error}'
            ) from error
