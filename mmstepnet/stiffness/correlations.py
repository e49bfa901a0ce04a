"""Correlations: NSI with attention value (Fig. 9), TNS with accuracy (Fig. 7).

Understanding Self-attention Mechanism via Dynamical System Perspective,
ICCV 2023, https://arxiv.org/abs/2308.09939
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

FLOAT32_NOISE = 1e-6
"""Relative spread below which float32 values count as one constant."""


def row_correlations(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Pearson's correlation of each row.

    Args:
        x (ndarray): (R, K).
        y (ndarray): (R, K).

    Returns:
        ndarray: Correlations, (R,). NaN marks a row without one: fewer than
        three values, or one side is constant up to float32 rounding.
    """
    result = np.full(len(x), np.nan)
    defined = rows_vary(x) & rows_vary(y)
    if x.shape[1] > 2 and defined.any():
        result[defined] = stats.pearsonr(
            x[defined].astype(np.float64),
            y[defined].astype(np.float64),
            axis=1,
        ).statistic
    return result


def rows_vary(values: np.ndarray) -> np.ndarray:
    """Whether each row of (R, K) is more than one constant, (R,) booleans."""
    return np.ptp(values, 1) > FLOAT32_NOISE * np.abs(values).max(1)


class RankCorrelation(NamedTuple):
    """Rank correlations between TNS and accuracy, with their p-values."""

    kendall: float
    kendall_p: float
    spearman: float
    spearman_p: float

    def __str__(self):
        return (
            f'Kendall τ = {self.kendall:.3f} (p = {self.kendall_p:.2g}), '
            f'Spearman ρ = {self.spearman:.3f} '
            f'(p = {self.spearman_p:.2g})'
        )


def correlate_ranks(
    tns: Sequence[float], accuracy: Sequence[float], what: str
) -> RankCorrelation | str:
    """Rank runs or models by TNS and by accuracy.

    Args:
        tns (Sequence[float]): TNS of each.
        accuracy (Sequence[float]): Accuracy of each.
        what (str): What they are, for the message.

    Returns:
        RankCorrelation | str: Kendall's tau-b and Spearman's rho; where they
        are not defined, why.
    """
    if len(tns) < 3:
        return (
            f'Kendall and Spearman need at least 3 {what} with an '
            f'accuracy, here {len(tns)}'
        )
    for name, values in (('TNS', tns), ('accuracy', accuracy)):
        if len(set(values)) == 1:
            return (
                f'Kendall and Spearman are not defined: all {what} have '
                f'{name} {values[0]:.4g}'
            )
    # The p-values of SciPy are those of many runs without ties.
    ranks = stats.rankdata(accuracy)
    signs = _order_of_pairs(np.array(accuracy))
    return RankCorrelation(
        stats.kendalltau(tns, accuracy).statistic,
        _permuted(tns, lambda x: _order_of_pairs(x) @ signs),
        stats.spearmanr(tns, accuracy).statistic,
        _permuted(stats.rankdata(tns), lambda x: x @ ranks),
    )


def _order_of_pairs(values: np.ndarray) -> np.ndarray:
    """Sign of each difference of two, (..., n) to (..., n (n - 1) / 2)."""
    i, j = np.triu_indices(values.shape[-1], 1)
    return np.sign(values[..., i] - values[..., j])


def _permuted(values: Sequence[float], statistic: Callable) -> float:
    """p-value, two-sided, of a statistic that grows with the correlation.

    All orders of up to 7 runs are tried, of more a fixed sample.
    """
    return stats.permutation_test(
        (values,),
        lambda x, axis: statistic(x),
        vectorized=True,
        permutation_type='pairings',
        n_resamples=9999,
        random_state=0,
        batch=100,
    ).pvalue  # of n (n - 1) / 2 pairs each
