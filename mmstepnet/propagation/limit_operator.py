"""What attention does to features in the limit of a small time scale.

Towards understanding how attention mechanism works in deep learning,
https://arxiv.org/abs/2412.18288, Section 3, Theorems 2 and 3.
"""

from torch import Tensor

from .functional import check_eps, metric_propagation


def attention_limit_operator(x: Tensor, u: Tensor, eps: float) -> Tensor:
    r"""Estimate the attention limit operator on data points.

    .. math::
        \mathrm{At}\, u = \Delta u + 2 \nabla \log p \cdot \nabla u
        = \lim_{\varepsilon \to 0} \frac{2}{\varepsilon} (S_\varepsilon - I)\,
        u, \qquad S_{\varepsilon, ij} =
        \mathrm{softmax}_j(-\|x_i - x_j\|^2 / (2 \varepsilon))

    Diffusion by the Laplace-Beltrami operator, and drift towards where the
    points are dense, p (Theorem 2). One propagation is therefore an Euler
    step of :math:`\partial_t u = \mathrm{At}\, u` of length
    :math:`\varepsilon / 2` (Theorem 3).

    :math:`\varepsilon` is that of the paper's heat kernel, the kernel's
    variance along each direction of the manifold. Attention as it stands,
    :math:`\mathrm{softmax}_j(-\|x_i - x_j\|^2)`, is
    :math:`\varepsilon = 1/2`; the ``eps`` of :func:`metric_propagation` and
    of the modules is ours and :math:`2 \varepsilon`.

    The estimate is off by :math:`O(\varepsilon)`, by the sampling of the
    points, whose spacing has to stay well below
    :math:`\sqrt\varepsilon`, and by rounding times
    :math:`2 / \varepsilon`: give float64 where :math:`\varepsilon` is small.

    Args:
        x (Tensor): Points on a manifold, as the metric sees them,
            :math:`\tilde f(x_i)`, (..., N, d).
        u (Tensor): Functions on it, their values at the points, (..., N, e).
        eps (float): Time scale :math:`\varepsilon > 0` of the paper, in
            squared units of distance.

    Returns:
        Tensor: At u at the points, (..., N, e), in units of u over squared
        distance.

    Raises:
        ValueError: See :func:`metric_propagation`.
    """
    check_eps(eps)
    return (metric_propagation(x, x, u, 2 * eps) - u) * (2 / eps)
