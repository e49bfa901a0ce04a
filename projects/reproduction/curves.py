"""Curves over the epochs, and what they tell of robustness."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

LAST_EPOCHS = 10
"""Most epochs at the end of training over which a run's spread is taken."""

LEAST_VALIDATIONS = 3
"""Fewer at the end show how fast a run rises, not how calm it is."""


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
    return _stack([dict(r.get('curves', {}).get(key, [])) for r in results])


def stack_validations(
        results: Sequence[dict[str, Any]], quantity: Callable[[dict], Any]
) -> tuple[np.ndarray, np.ndarray] | None:
    """Lay what validations measured of stiffness over each other.

    Args:
        results (Sequence[dict]): Results of the S seeds.
        quantity (Callable): Takes it from a validation's record, see
            :func:`~projects.reproduction.stiffness.summarise_validations`.

    Returns:
        tuple: The epochs (E,) that all seeds have, and values (S, E, ...);
        None where a seed has none.
    """
    return _stack([{v['epoch']: quantity(v) for v in r.get('validations', [])}
                   for r in results])


def _stack(curves: Sequence[dict]) -> tuple[np.ndarray, np.ndarray] | None:
    if not curves:
        return None
    epochs = sorted(set.intersection(*map(set, curves)))
    if not epochs:
        return None
    return np.array(epochs), np.array([[c[e] for e in epochs] for c in curves])


def late_validations(epochs: np.ndarray) -> np.ndarray:
    """Which validations are of the end of training.

    Those of the last 10 epochs, of a short training of its second half.

    Args:
        epochs (ndarray): Of the validations (E,).

    Returns:
        ndarray: Mask (E,), all False where they are fewer than
        :data:`LEAST_VALIDATIONS`.
    """
    end = epochs.max()
    late = epochs > end - min(LAST_EPOCHS, end // 2)
    return late & (late.sum() >= LEAST_VALIDATIONS)


def mean_variance(values: np.ndarray) -> float:
    """Sample variance (over E - 1) of each run (S, E), the mean of the S."""
    return float(values.var(1, ddof=1).mean())
