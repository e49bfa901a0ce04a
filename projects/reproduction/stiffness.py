"""What a result keeps of a run's stiffness, from the record of its test."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mmstepnet.stiffness import (
    MEANS,
    READINGS,
    Trajectories,
    degree_axes,
    stiffness_proportion,
)

FEW = 0.1
"""The proportion that the paper compares with, 10 % (Fig. 6)."""


def summarise_stiffness(record: str | Path) -> dict[str, Any]:
    """Reduce a record of N samples at L blocks to numbers for a result.

    Args:
        record (str | Path): A ``stiffness_*.npz``.

    Returns:
        dict: What does not depend on the reading of NSI:

        - ``samples``: N; ``blocks``: names (L,); ``stages``: (L,)
        - ``step``: mean attention values over samples, (L,)

        By reading (``'adaptive'``, ``'unit'``, ``'returned'``):

        - ``tns``: mean over samples, by ``mu``: ``'stage'`` (Definition 2 of
          the paper) and ``'all'`` (its Eq. 15)
        - ``p_hat``: mean over samples of the integral of p̂ over all degrees,
          by ``mu``
        - ``few_stiff``: share of the degrees M, of those that some sample is
          stiff to, with p̂(M) at most 10 %, μ over the stage; None where no
          sample is stiff to any. Degrees are the cells of the grid of the
          figures, 40 x 40, on which it depends: each axis ends where one
          sample in a hundred is still stiff.
        - ``correlation``: Pearson's, over samples, between NSI and mean
          attention value, (L,); None where one of them is constant.
        - ``along``: of the same along each trajectory, by stage and over all
          blocks: ``mean`` over samples, and ``negative``, the share of
          samples below 0. Stages of fewer than three blocks have none.

        And ``nsi``: means of the adaptive reading over samples, (L,).
    """
    run = Trajectories.load(record)
    return {
        'samples': len(run),
        'blocks': run.blocks,
        'stages': run.stages.tolist(),
        'p_hat': _by_reading(run.proportion),
        'few_stiff': {
            reading: _few_stiff(run, reading) for reading in READINGS
        },
        'tns': _by_reading(run.tns),
        'nsi': [_short(v) for v in run.nsi().mean(0, dtype=np.float64)],
        'step': [_short(v) for v in run.step_mean.mean(0, dtype=np.float64)],
        'correlation': {
            reading: [
                None if np.isnan(r) else _short(r)
                for r in run.block_correlations(reading)
            ]
            for reading in READINGS
        },
        'along': {
            reading: {
                name: dict(
                    mean=_short(r.mean(dtype=np.float64)),
                    negative=_short((r < 0).mean()),
                )
                for name, r in run.trajectory_correlations(reading).items()
            }
            for reading in READINGS
        },
    }


def _by_reading(total: Callable[[str, str], float]) -> dict:
    return {
        reading: {mu: _short(total(reading, mu)) for mu in MEANS}
        for reading in READINGS
    }


def _few_stiff(run: Trajectories, reading: str) -> float | None:
    nsi = run.nsi(reading)
    m1, m2 = degree_axes([(nsi, run.stages)])
    proportion = stiffness_proportion(nsi, run.stages, m1, m2)
    stiff = proportion[proportion > 0]
    return _short((stiff <= FEW).mean()) if stiff.size else None


def _short(value: float) -> float:
    return float(f'{value:.6g}')
