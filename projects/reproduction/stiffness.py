"""What a result keeps of a run's stiffness, from the record of its test."""

from pathlib import Path
from typing import Any

import numpy as np

from mmstepnet.stiffness import (
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
        dict: Of the default reading of NSI,

        - ``samples``: N; ``blocks``: names (L,); ``stages``: (L,)
        - ``tns``: mean over samples, Definition 2 of the paper
        - ``p_hat``: mean over samples of the integral of p̂ over all degrees
        - ``few_stiff``: share of the degrees M, of those that some sample is
          stiff to, with p̂(M) at most 10 %. Degrees are the cells of the
          grid of the figures, 40 x 40, on which it depends: each axis ends
          where one sample in a hundred is still stiff.
        - ``nsi``, ``step``: means over samples, (L,)
        - ``correlation``: Pearson's, over samples, between NSI and mean
          attention value, (L,); None where one of them is constant.
    """
    run = Trajectories.load(record)
    nsi = run.nsi()
    m1, m2 = degree_axes([(nsi, run.stages)])
    proportion = stiffness_proportion(nsi, run.stages, m1, m2)
    stiff = proportion[proportion > 0]
    correlation = [None if np.isnan(r) else _short(r)
                   for r in run.block_correlations()]
    return {
        'samples': len(run),
        'blocks': run.blocks,
        'stages': run.stages.tolist(),
        'tns': _short(run.tns()),
        'p_hat': _short(run.proportion()),
        'few_stiff': _short((stiff <= FEW).mean()) if stiff.size else None,
        'nsi': [_short(v) for v in nsi.mean(0, dtype=np.float64)],
        'step': [_short(v) for v in run.step_mean.mean(0, dtype=np.float64)],
        'correlation': correlation,
    }


def _short(value: float) -> float:
    return float(f'{value:.6g}')
