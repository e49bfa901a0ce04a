r"""Stiffness of whole trajectories: TNS, and its two indicators on grids.

Understanding Self-attention Mechanism via Dynamical System Perspective,
ICCV 2023, https://arxiv.org/abs/2308.09939, Definition 2 and Eq. 5.

With :math:`\mu` a mean of a sample's NSI, its block t is stiff to degree
:math:`M = (M_1, M_2)` if :math:`\zeta_t \ge \max(\mu (1 + M_1), M_2)`, that
is, if M lies in the rectangle
:math:`[0, \zeta_t / \mu - 1] \times [0, \zeta_t]`. Everything here is areas
and counts of these rectangles.

The paper has two means, between which ``mu`` chooses everywhere:

- ``'stage'``, of Definition 2: over the blocks of the stage of block t, so
  that each stage has its own :math:`\mu`. The default.
- ``'all'``, of Appendix B, Eq. 15: over all blocks of the trajectory, as if
  it were one stage.

Both are means of the blocks that are recorded, which leave out the first of
each stage: a reading of ours, as is the number L of these blocks in
:math:`\hat p`.

Every function takes tensors or NumPy arrays, computes in float64, and gives
back float64: a tensor if any argument was one, else a NumPy array.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from mmstepnet.checks import check_choice

from .checks import (
    Array,
    ArrayLike,
    check_shape,
    check_trajectories,
    to_float64,
)

MEANS = ('stage', 'all')
"""Choices of ``mu``: blocks over which a mean is taken."""

GRID_POINTS = 40
"""Thresholds on each axis of :func:`degree_axes`."""


def total_neural_stiffness(
    nsi: ArrayLike, stages: ArrayLike, mu: str = 'stage'
) -> Array:
    r"""Total neural stiffness of each sample, Definition 2, in closed form.

    .. math::
        \mathrm{TNS} = \iint_M \mathbf{I}\left[\exists t:
        \zeta_t \ge \max(\mu (1 + M_1), M_2)\right] dM

    is the area of the union of the blocks' rectangles. Among blocks of one
    mean both sides grow with :math:`\zeta_t`, so only the largest counts. With
    the mean of a stage the union is therefore a staircase of one rectangle a
    stage. With the mean of all blocks it is a single rectangle, and TNS is
    :math:`(\max_t \zeta_t / \mu - 1) \max_t \zeta_t`. The data set's TNS is
    the mean over samples.

    Args:
        nsi (Tensor | ndarray): NSI of N samples at L blocks, (N, L).
        stages (Tensor | ndarray): Stage of each block, integers, (L,).
        mu (str): Blocks of which the mean is taken: ``'stage'`` (Definition
            2) or ``'all'`` (Eq. 15). Defaults to ``'stage'``.

    Returns:
        Tensor | ndarray: TNS, (N,). Values that are all 0 add nothing. Under
        ``'stage'`` a stage of one block adds nothing either, for it equals
        its mean: ResNet-18, of whose two blocks a stage the first is left
        out, has TNS 0 by definition. Under ``'all'`` it has not.

    Raises:
        ValueError: Shapes do not fit, there is no sample or no block, a
            value is negative, NaN or infinite, or ``mu`` is unknown.

    Example:
        >>> import numpy as np
        >>> total_neural_stiffness(np.array([[0.5, 1.5]]), [0, 0])
        array([0.75])
    """
    (nsi, stages), give_back = to_float64(nsi=nsi, stages=stages)
    excess, peak = _stage_rectangles(nsi, stages, mu)
    excess, order = excess.sort(dim=1, descending=True)
    height = peak.gather(1, order).cummax(dim=1).values
    width = excess - torch.nn.functional.pad(excess[:, 1:], (0, 1))
    return give_back((width * height).sum(1))


def total_stiffness_proportion(
    nsi: ArrayLike, stages: ArrayLike, mu: str = 'stage'
) -> Array:
    r"""Integral of the proportion of stiff blocks, in closed form.

    .. math::
        \iint_M \hat p \, dM = \frac{1}{L} \sum_t
        \max(\zeta_t / \mu - 1,\, 0)\; \zeta_t

    The data set's is the mean over samples. L counts the blocks of ``nsi``,
    hence not the first ones of the stages, which the recorder leaves out: a
    reading. See :func:`total_neural_stiffness` for arguments and errors.

    Returns:
        Tensor | ndarray: Integral, (N,).
    """
    area, give_back = _block_areas(nsi, stages, mu)
    return give_back(area.mean(1))


def block_stiffness(
    nsi: ArrayLike, stages: ArrayLike, mu: str = 'stage'
) -> Array:
    r"""Stiffness of each block over all thresholds.

    The area of all degrees to which block t is stiff is
    :math:`\max(\zeta_t / \mu - 1, 0)\, \zeta_t`; its mean over the samples
    is the block's share of :math:`\iint \hat p`, times L (§3.1 of the paper).
    That blocks are ranked by it is a reading of ours: the paper does not say
    how to choose them. See :func:`total_neural_stiffness` for arguments and
    errors.

    Returns:
        Tensor | ndarray: (L,). Under ``mu='stage'`` 0 for the only block of a
        stage.
    """
    area, give_back = _block_areas(nsi, stages, mu)
    return give_back(area.mean(0))


def stiffness_occurrence(
    nsi: ArrayLike,
    stages: ArrayLike,
    m1: ArrayLike,
    m2: ArrayLike,
    mu: str = 'stage',
) -> Array:
    r"""Share of samples that are stiff to degree (M1, M2), Eq. 5, Fig. 2.

    Args:
        nsi (Tensor | ndarray): NSI of N samples at L blocks, (N, L).
        stages (Tensor | ndarray): Stage of each block, integers, (L,).
        m1 (Tensor | ndarray): Relative thresholds M1 >= 0, (A,).
        m2 (Tensor | ndarray): Absolute thresholds M2 >= 0, (B,).
        mu (str): ``'stage'`` or ``'all'``. Defaults to ``'stage'``.

    Returns:
        Tensor | ndarray: δ(M), (A, B).

    Raises:
        ValueError: As :func:`total_neural_stiffness`.
    """
    (nsi, stages, m1, m2), give_back = to_float64(
        nsi=nsi, stages=stages, m1=m1, m2=m2
    )
    # Where all is 0, 0 >= 0 (1 + M1): every M1 is met, but M2 only at 0.
    sides = _stage_rectangles(nsi, stages, mu, at_rest=float('inf'))
    return give_back(_share_of_rows(*sides, m1, m2))


def stiffness_proportion(
    nsi: ArrayLike,
    stages: ArrayLike,
    m1: ArrayLike,
    m2: ArrayLike,
    mu: str = 'stage',
) -> Array:
    r"""Mean share of blocks that are stiff to degree (M1, M2), Fig. 6.

    The share is that of the blocks of ``nsi``, hence without the first ones
    of the stages: a reading. See :func:`stiffness_occurrence` for arguments
    and errors.

    Returns:
        Tensor | ndarray: :math:`\hat p(M)`, (A, B).
    """
    (nsi, stages, m1, m2), give_back = to_float64(
        nsi=nsi, stages=stages, m1=m1, m2=m2
    )
    mean, index = _stage_means(nsi, stages, mu)
    excess = _excess(nsi, mean[:, index], at_rest=float('inf'))
    return give_back(
        _share_of_rows(excess.reshape(-1, 1), nsi.reshape(-1, 1), m1, m2)
    )


def degree_axes(
    trajectories: Sequence[tuple[ArrayLike, ArrayLike]], mu: str = 'stage'
) -> tuple[np.ndarray, np.ndarray]:
    """Thresholds M1 and M2 that show all of some models on the same axes.

    They are the centres of equal cells, from 0 to where one sample in a
    hundred of the stiffest model is still stiff.

    Args:
        trajectories (Sequence[tuple]): NSI (N, L) and stages (L,) of each.
        mu (str): ``'stage'`` or ``'all'``. Defaults to ``'stage'``.

    Returns:
        tuple[ndarray, ndarray]: M1 and M2, each (:data:`GRID_POINTS`,).
    """
    ends = []
    for each_nsi, each_stages in trajectories:
        nsi, stages = to_float64(nsi=each_nsi, stages=each_stages)[0]
        left, low = _stage_rectangles(nsi, stages, mu)
        ends.append([np.percentile(m.amax(1).cpu(), 99) for m in (left, low)])
    widest, highest = np.max(ends, axis=0)
    centres = (np.arange(GRID_POINTS) + 0.5) / GRID_POINTS
    # Nothing spreads where each stage has one block: any axis will do.
    return centres * (widest or 1.0), centres * (highest or 1.0)


def _stage_means(
    nsi: Tensor, stages: Tensor, mu: str
) -> tuple[Tensor, Tensor]:
    """Means, (N, S), and the place in S of each block's, (L,)."""
    check_choice('mu', mu, MEANS)
    check_trajectories(nsi, stages)
    if mu == 'all':
        stages = torch.zeros_like(stages)
    names, index = stages.unique(return_inverse=True)
    member = torch.nn.functional.one_hot(index, len(names)).to(nsi)
    return nsi @ member / member.sum(0), index


def _excess(value: Tensor, mean: Tensor, at_rest: float) -> Tensor:
    """ζ / μ - 1, and ``at_rest`` where μ is 0."""
    return torch.where(mean == 0, at_rest, value / mean - 1)


def _block_areas(
    nsi: ArrayLike, stages: ArrayLike, mu: str
) -> tuple[Tensor, Callable]:
    """Area of every block's rectangle, (N, L)."""
    (nsi, stages), give_back = to_float64(nsi=nsi, stages=stages)
    mean, index = _stage_means(nsi, stages, mu)
    excess = _excess(nsi, mean[:, index], 0.0).clamp(min=0)
    return excess * nsi, give_back


def _stage_rectangles(
    nsi: Tensor, stages: Tensor, mu: str, at_rest: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Sides of the largest rectangle of each mean, both (N, S)."""
    mean, index = _stage_means(nsi, stages, mu)
    peak = torch.zeros_like(mean).scatter_reduce(
        1, index.expand_as(nsi), nsi, 'amax'
    )
    # The mean of equal values may round to above them.
    return _excess(peak, mean, at_rest).clamp(min=0), peak


def _share_of_rows(
    width: Tensor, height: Tensor, m1: Tensor, m2: Tensor
) -> Tensor:
    """Share of rows some of whose rectangles hold each (M1, M2), (A, B).

    Args:
        width (Tensor): First sides of the rectangles, (R, K).
        height (Tensor): Second sides, (R, K).
        m1 (Tensor): Thresholds of the first sides, (A,).
        m2 (Tensor): Thresholds of the second sides, (B,).
    """
    check_shape('m1', m1, 'A')
    check_shape('m2', m2, 'B')
    counts = []
    for threshold in m1:
        highest = torch.where(width >= threshold, height, -1.0).amax(1)
        highest = highest[highest >= 0].sort().values
        counts.append(len(highest) - torch.searchsorted(highest, m2))
    return torch.stack(counts).double() / len(width)
