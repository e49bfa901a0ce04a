r"""Stiffness of whole trajectories: TNS, and its two indicators on grids.

Understanding Self-attention Mechanism via Dynamical System Perspective,
ICCV 2023, https://arxiv.org/abs/2308.09939, Definition 2 and Eq. 5.

With :math:`\mu_S` the mean of a sample's NSI in a stage S, its block t in S
is stiff to degree :math:`M = (M_1, M_2)` if
:math:`\zeta_t \ge \max(\mu_S (1 + M_1), M_2)`, that is, if M lies in the
rectangle :math:`[0, \zeta_t / \mu_S - 1] \times [0, \zeta_t]`. Everything
here is areas and counts of these rectangles.

Every function takes tensors or NumPy arrays, computes in float64, and gives
back float64: a tensor if any argument was one, else a NumPy array.
"""

import torch
from torch import Tensor

from .arrays import ArrayLike, check_shape, first_index, to_float64


def total_neural_stiffness(nsi: ArrayLike, stages: ArrayLike) -> ArrayLike:
    r"""Total neural stiffness of each sample, Definition 2, in closed form.

    .. math::
        \mathrm{TNS} = \iint_M \mathbf{I}\left[\exists t:
        \zeta_t \ge \max(\mu_S (1 + M_1), M_2)\right] dM

    is the area of the union of the blocks' rectangles. Within a stage both
    sides grow with :math:`\zeta_t`, so only the stage's largest counts: the
    union is a staircase of one rectangle a stage. The data set's TNS is the
    mean over samples.

    Args:
        nsi (Tensor | ndarray): NSI of N samples at L blocks, (N, L).
        stages (Tensor | ndarray): Stage of each block, integers, (L,).

    Returns:
        Tensor | ndarray: TNS, (N,). A stage of one block adds nothing, for
        it equals its mean; so does a stage whose values are all 0.
        So ResNet-18, of whose two blocks a stage the first is left out,
        has TNS 0 by definition.

    Raises:
        ValueError: Shapes do not fit, there is no sample or no block, or a
            value is negative, NaN or infinite.

    Example:
        >>> import numpy as np
        >>> total_neural_stiffness(np.array([[0.5, 1.5]]), [0, 0])
        array([0.75])
    """
    (nsi, stages), give_back = to_float64(nsi=nsi, stages=stages)
    excess, peak = _stage_rectangles(nsi, stages)
    excess, order = excess.sort(dim=1, descending=True)
    height = peak.gather(1, order).cummax(dim=1).values
    width = excess - torch.nn.functional.pad(excess[:, 1:], (0, 1))
    return give_back((width * height).sum(1))


def total_stiffness_proportion(nsi: ArrayLike, stages: ArrayLike) -> ArrayLike:
    r"""Integral of the proportion of stiff blocks, in closed form.

    .. math::
        \iint_M \hat p \, dM = \frac{1}{L} \sum_t
        \max(\zeta_t / \mu_S - 1,\, 0)\; \zeta_t

    The data set's is the mean over samples. See
    :func:`total_neural_stiffness` for arguments and errors.

    Returns:
        Tensor | ndarray: Integral, (N,).
    """
    (nsi, stages), give_back = to_float64(nsi=nsi, stages=stages)
    mean, _, index = _stage_means(nsi, stages)
    excess = _excess(nsi, mean[:, index], 0.0).clamp(min=0)
    return give_back((excess * nsi).mean(1))


def stiffness_occurrence(nsi: ArrayLike, stages: ArrayLike, m1: ArrayLike,
                         m2: ArrayLike) -> ArrayLike:
    r"""Share of samples that are stiff to degree (M1, M2), Eq. 5, Fig. 2.

    Args:
        nsi (Tensor | ndarray): NSI of N samples at L blocks, (N, L).
        stages (Tensor | ndarray): Stage of each block, integers, (L,).
        m1 (Tensor | ndarray): Relative thresholds M1 >= 0, (A,).
        m2 (Tensor | ndarray): Absolute thresholds M2 >= 0, (B,).

    Returns:
        Tensor | ndarray: δ(M), (A, B).

    Raises:
        ValueError: As :func:`total_neural_stiffness`, or a threshold is
            negative.
    """
    (nsi, stages, m1, m2), give_back = to_float64(
        nsi=nsi, stages=stages, m1=m1, m2=m2)
    # Where all is 0, 0 >= 0 (1 + M1): every M1 is met, but M2 only at 0.
    excess, peak = _stage_rectangles(nsi, stages, at_rest=float('inf'))
    # The staircase as a sum of rectangles: every one that no wider one
    # overtops, less what each shares with the next wider one.
    excess, order = excess.sort(dim=1, descending=True)
    height = peak.gather(1, order).cummax(dim=1).values
    shared = excess[:, 1:], height[:, :-1]
    return give_back((_count(excess, height, m1, m2) -
                      _count(*shared, m1, m2)) / len(nsi))


def stiffness_proportion(nsi: ArrayLike, stages: ArrayLike, m1: ArrayLike,
                         m2: ArrayLike) -> ArrayLike:
    r"""Mean share of blocks that are stiff to degree (M1, M2), Fig. 6.

    See :func:`stiffness_occurrence` for arguments and errors.

    Returns:
        Tensor | ndarray: :math:`\hat p(M)`, (A, B).
    """
    (nsi, stages, m1, m2), give_back = to_float64(
        nsi=nsi, stages=stages, m1=m1, m2=m2)
    mean, _, index = _stage_means(nsi, stages)
    excess = _excess(nsi, mean[:, index], at_rest=float('inf'))
    return give_back(_count(excess, nsi, m1, m2) / nsi.numel())


def _stage_means(nsi: Tensor,
                 stages: Tensor) -> tuple[Tensor, list[Tensor], Tensor]:
    """Means (N, S), the blocks of each stage, and each block's stage (L,)."""
    check_shape('nsi', nsi, 'NL')
    check_shape('stages', stages, nsi.shape[1:])
    if nsi.amin() < 0:
        where = first_index(nsi < 0)
        raise ValueError(f'nsi is a ratio of norms and not negative, got '
                         f'{nsi[where].item():g} at index {where}')
    if (stages != stages.round()).any():
        raise ValueError(f'stages must be integers, got {stages.tolist()}')
    names, index = stages.unique(return_inverse=True)
    member = torch.nn.functional.one_hot(index, len(names)).to(nsi)
    blocks = [column.nonzero()[:, 0] for column in member.unbind(1)]
    return nsi @ member / member.sum(0), blocks, index


def _excess(value: Tensor, mean: Tensor, at_rest: float) -> Tensor:
    """ζ / μ_S - 1, and ``at_rest`` where μ_S is 0."""
    return torch.where(mean == 0, at_rest, value / mean - 1)


def _stage_rectangles(nsi: Tensor,
                      stages: Tensor,
                      at_rest: float = 0.0) -> tuple[Tensor, Tensor]:
    """Sides of each stage's largest rectangle, both (N, S)."""
    mean, blocks, _ = _stage_means(nsi, stages)
    peak = torch.stack([nsi[:, columns].amax(1) for columns in blocks], 1)
    # The mean of equal values may round to above them.
    return _excess(peak, mean, at_rest).clamp(min=0), peak


def _count(width: Tensor, height: Tensor, m1: Tensor, m2: Tensor) -> Tensor:
    """Number of rectangles that hold each (M1, M2), (A, B)."""
    counts = torch.zeros(
        len(m1) + 1, len(m2) + 1, dtype=torch.float64, device=m1.device)
    ranks, orders = [], []
    for name, sides, thresholds in (('m1', width, m1), ('m2', height, m2)):
        check_shape(name, thresholds, 'A')
        if (thresholds < 0).any():
            raise ValueError(f'{name} must not be negative, got '
                             f'{thresholds[thresholds < 0][0].item():g}')
        thresholds, order = thresholds.sort()
        # How many thresholds the side reaches.
        sides = sides.reshape(-1).contiguous()
        ranks.append(torch.searchsorted(thresholds, sides, right=True))
        orders.append(order.argsort())
    flat = ranks[0] * counts.shape[1] + ranks[1]
    counts = torch.bincount(
        flat, minlength=counts.numel()).view_as(counts).double()
    # Rank r reaches the thresholds 0 .. r-1: sum from the far corner.
    reached = counts.flip(0, 1).cumsum(0).cumsum(1).flip(0, 1)[1:, 1:]
    return reached[orders[0]][:, orders[1]]
