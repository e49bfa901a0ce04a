"""Curves over the epochs, and what they tell of robustness."""

from collections.abc import Sequence
from typing import Any

import numpy as np

LAST_EPOCHS = 10
"""Most epochs at the end of training over which a run's spread is taken."""


def stack_curves(results: Sequence[dict[str, Any]],
                 key: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Lay the curves of a config's seeds over each other.

    Args:
        results (Sequence[dict]): Results of the S seeds.
        key (str): ``'loss'`` or the host's name of a metric.

    Returns:
        tuple: The epochs (E,) that all seeds have, and values (S, E); None
        where a seed has no such curve.
    """
    curves = [dict(r.get('curves', {}).get(key, [])) for r in results]
    if not curves:
        return None
    epochs = sorted(set.intersection(*map(set, curves)))
    if not epochs:
        return None
    return np.array(epochs), np.array([[c[e] for e in epochs] for c in curves])


def late_epochs(count: int) -> int:
    """Number of last epochs: 10, of a short training its second half."""
    return max(min(LAST_EPOCHS, count // 2), 2)


def late_variance(values: np.ndarray, last: int) -> float:
    """Variance over the last epochs of a run, the mean of the seeds.

    Args:
        values (ndarray): (S, E).
        last (int): Epochs from the end, see :func:`late_epochs`.

    Returns:
        float: Mean of the sample variances (over E - 1); NaN where there is
        one epoch.
    """
    late = values[:, -last:]
    return float(late.var(1, ddof=1).mean()) if late.shape[1] > 1 else np.nan
