"""What attention does to features in the limit of a small time scale.

Towards understanding how attention mechanism works in deep learning, Section
3.2, Theorems 2 and 3.
"""

from torch import Tensor

from .functional import metric_propagation


def attention_limit_operator(x: Tensor, u: Tensor, eps: float) -> Tensor:
    r"""Estimate the attention limit operator on data points.

    .. math::
        \mathrm{At}\, u = \Delta u + 2 \nabla \log\rho \cdot \nabla u
        = \lim_{\varepsilon \to 0} \frac{4}{\varepsilon} (S - I)\, u,
        \qquad S_{ij} = \mathrm{softmax}_j(-\|x_i - x_j\|^2 / \varepsilon)

    Diffusion by the Laplace-Beltrami operator, and drift towards where the
    points are dense, :math:`\rho`. One propagation is therefore an Euler step
    of :math:`\partial_t u = \mathrm{At}\, u` of length
    :math:`\varepsilon / 4`.

    The factor 4 belongs to this kernel: along each direction of the manifold
    it has the variance :math:`\varepsilon / 2`, so that :math:`\int
    e^{-\|x-y\|^2/\varepsilon} (\rho u)(y)\, dy \propto \rho u +
    \frac{\varepsilon}{4} (\Delta (\rho u) + w \rho u)`, with w a matter of
    the embedding. Division by the same integral of :math:`\rho` leaves what
    stands above, and no w (the paper's formulas are lost from our copy; this
    is their derivation in its Appendix B).

    The estimate is off by :math:`O(\varepsilon)`, by the sampling of the
    points, whose spacing has to stay well below
    :math:`\sqrt\varepsilon`, and by rounding times
    :math:`4 / \varepsilon`: give float64 where :math:`\varepsilon` is small.

    Args:
        x (Tensor): Points on a manifold, as the metric sees them,
            :math:`\varphi(x_i)`, (..., N, d).
        u (Tensor): Functions on it, their values at the points, (..., N, e).
        eps (float): Time scale :math:`\varepsilon > 0`, in squared units of
            distance.

    Returns:
        Tensor: At u at the points, (..., N, e), in units of u over squared
        distance.

    Raises:
        ValueError: See :func:`metric_propagation`.
    """
    return (metric_propagation(x, x, u, eps) - u) * (4 / eps)
