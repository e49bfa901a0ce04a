"""Propagation by general pseudo-metrics: Section 3.4, and Examples 1 to 3.

A pseudo-metric takes a point to its nearest points, which it defines: to one
on a sphere (Theorem 5, Example 3), to two on a circle, to a circle on a torus
(Theorem 6).
"""

from collections.abc import Callable

import numpy as np
import torch
from scipy.special import ive
from torch import Tensor
from torch.func import grad, hessian, jacfwd

from mmstepnet.propagation import (
    dot_product_propagation,
    metric_propagation,
)
from projects.metric_attention.similarity.operators import qk_dot_product

from .circle import on_circle

CROWD, TENSION = 0.5, 0.8
"""Waves of the torus's density and of its pseudo-metric's Hessian."""


def on_sphere(count: int) -> Tensor:
    """Fibonacci's even points on the unit sphere, (N, 3)."""
    index = np.arange(count) + 0.5
    height = 1 - 2 * index / count
    angle = np.pi * (1 + 5**0.5) * index
    radius = np.sqrt(1 - height**2)
    return torch.from_numpy(
        np.stack([radius * np.cos(angle), radius * np.sin(angle), height],
                 -1))


def nearest_on_sphere(weight: Tensor, eps: float, receivers: int = 50,
                      sources: int = 20000) -> dict[str, Tensor]:
    """Propagate positions on the sphere by dot products (Example 3).

    The pseudo-metric -x . W y has one nearest point, W^T x / |W^T x|.

    Args:
        weight (Tensor): W, (3, 3), not singular.
        eps (float): Time scale; dot products are divided by its double.
        receivers (int): Points x. Defaults to 50.
        sources (int): Points y, whose positions are sent. Defaults to 20000.

    Returns:
        dict: ``out`` and ``nearest`` point, (receivers, 3), and ``pull``,
        |W^T x|, (receivers,).
    """
    x, y = on_sphere(receivers), on_sphere(sources)
    wanted = x @ weight
    out = dot_product_propagation(wanted / (2 * eps), y, y)
    pull = wanted.norm(dim=1)
    return dict(out=out, nearest=wanted / pull[:, None], pull=pull)


def two_nearest(angle: np.ndarray, u: np.ndarray, eps: float) -> np.ndarray:
    """Propagate by a pseudo-metric that cannot tell opposite points apart.

    Args:
        angle (ndarray): Points on the circle, (N,).
        u (ndarray): Values at them, (N,).
        eps (float): Time scale.

    Returns:
        ndarray: (N,).
    """
    doubled = on_circle(2 * angle)
    sent = torch.from_numpy(u)[:, None]
    return metric_propagation(doubled, doubled, sent, 2 * eps)[:, 0].numpy()


def first_order(f: Callable[[Tensor], Tensor],
                log_density: Callable[[Tensor], Tensor],
                h: Callable[[Tensor], Tensor], nearest: Tensor) -> Tensor:
    r"""Theorem 5's operator At_{f,p} at a nearest point y*.

    With C the Hessian of f there, in coordinates in which the metric is flat
    to second order,

    .. math::
        C^{-1}_{ij}\, \partial_i \partial_j h + C^{-1}_{ij}\, \partial_i h
        \, (2 \partial_j \log p - C^{-1}_{kl} \partial_j \partial_k
        \partial_l f)

    The last term is that of a metric's absence: |x - y|² has none. This is
    Laplace's method, worked out by us: the formula is lost in our copy.

    Args:
        f (Callable): f(x, .) for one x, (d,) -> scalar.
        log_density (Callable): log p, (d,) -> scalar.
        h (Callable): What points send, (d,) -> scalar.
        nearest (Tensor): y*, (d,).
    """
    inverse = torch.linalg.inv(hessian(f)(nearest))
    third = jacfwd(hessian(f))(nearest)
    pull = (2 * grad(log_density)(nearest)
            - torch.einsum('jkl,kl->j', third, inverse))
    return ((inverse * hessian(h)(nearest)).sum()
            + grad(h)(nearest) @ inverse @ pull)


def random_weight() -> Tensor:
    """A fixed W, (3, 3), neither symmetric nor near singular."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(3, 3, generator=generator, dtype=torch.float64)
    return torch.eye(3, dtype=torch.float64) + 0.4 * noise


def on_ellipsoid(query: Tensor, count: int) -> Tensor:
    """Points with x^T Q^T Q x = 1 (Example 1), (3, 3) -> (N, 3)."""
    return torch.linalg.solve(query, on_sphere(count).T).T


def self_attention_metric(x: Tensor, query: Tensor) -> Tensor:
    """Pseudo-metric -x^T Q^T Q y of Example 1, (N, 3) -> (N, N).

    On the ellipsoid it is |Q x - Q y|^2 / 2 - 1.
    """
    return -qk_dot_product(x, x, query, query)


def graph_attention_metric(x: Tensor, first: Tensor, second: Tensor,
                           weight: Tensor) -> Tensor:
    """Pseudo-metric -tanh(a_1^T P x - a_2^T P y) of Example 2.

    With a_1 = -a_2 it is symmetric; with a_1 = a_2, tanh being odd,
    antisymmetric: a point is at distance 0 from itself.

    Args:
        x (Tensor): Points, (N, d).
        first (Tensor): a_1, (k,).
        second (Tensor): a_2, (k,).
        weight (Tensor): P, (k, d).

    Returns:
        Tensor: (N, N).
    """
    sent = x @ weight.T
    return -torch.tanh((sent @ first)[:, None] - sent @ second)


def nearest_by_axes(x: Tensor, axes: Tensor, weight: Tensor) -> Tensor:
    """Nearest points of Example 3, where -Q^T K = P^T diag(a) P.

    In the axes' coordinates x' = P x, -a_i x'_i / sqrt(sum_i a_i² x'_i²): of
    the two signs, the one that minimises f = sum_i a_i x'_i y'_i.

    Args:
        x (Tensor): Points on the unit sphere, (N, d).
        axes (Tensor): P, orthogonal, (d, d).
        weight (Tensor): a, none 0, (d,).

    Returns:
        Tensor: On the unit sphere, (N, d).
    """
    towards = -weight * (x @ axes.T)
    return towards / towards.norm(dim=1, keepdim=True) @ axes


def turned_axes() -> tuple[Tensor, Tensor]:
    """P, a turn of the plane by 0.5, and a of both signs."""
    c, s = np.cos(0.5), np.sin(0.5)
    axes = torch.tensor([[c, s], [-s, c]], dtype=torch.float64)
    return axes, torch.tensor([-1.5, 0.6], dtype=torch.float64)


def nearest_on_circle(angle: np.ndarray, eps: float,
                      sources: int = 4000) -> Tensor:
    """Propagate positions on the circle by Example 3's dot products, (N, 2).

    Args:
        angle (ndarray): Points x, (N,).
        eps (float): The paper's time scale, exp(-f / 2 eps).
        sources (int): Points y, whose positions are sent. Defaults to 4000.
    """
    axes, weight = turned_axes()
    y = on_circle(np.arange(sources) * 2 * np.pi / sources)
    query = -on_circle(angle) @ axes.T * weight @ axes
    return dot_product_propagation(query / (2 * eps), y, y)


def tension(angle: np.ndarray) -> np.ndarray:
    """Half of the Hessian across the nearest points, of their t_2, (N,)."""
    return 1 + TENSION * np.cos(angle - 1)


def torus_grid(first: int, second: int) -> np.ndarray:
    """Quantiles of the density (1 + cos(t_1) / 2) (1 + cos(t_2) / 2), (N, 2).

    Args:
        first (int): Number along t_1.
        second (int): Number along t_2.
    """
    turn = np.linspace(0, 2 * np.pi, 8193)
    mass = turn + CROWD * np.sin(turn)
    t, s = (np.interp((np.arange(n) + 0.5) / n * 2 * np.pi, mass, turn)
            for n in (first, second))
    return np.stack(np.meshgrid(t, s, indexing='ij'), -1).reshape(-1, 2)


def sent(angle: np.ndarray) -> np.ndarray:
    """What the torus's points send, cos(t_2 - t_1), (N, 2) -> (N,)."""
    return np.cos(angle[:, 1] - angle[:, 0])


def nearest_circle(angle: np.ndarray, eps: float, first: int = 1000,
                   second: int = 100, values: bool = True) -> Tensor:
    """Propagate on a torus whose nearest points are circles (Theorem 6).

    f(x, y) = 2 w(t_2(y)) (1 - cos(t_1(y) - t_1(x))) is 0 on the circle of the
    same t_1, whatever t_2, and there its Hessian across is 2 w. It is a dot
    product of three features.

    Args:
        angle (ndarray): t_1 of the points x, (M,).
        eps (float): The paper's time scale, exp(-f / 2 eps).
        first (int): Number of points y along t_1. Defaults to 1000.
        second (int): Along t_2. Defaults to 100.
        values (bool): Send ``sent``; else each sends a vector of its own, so
            that the similarities come back. Defaults to True.

    Returns:
        Tensor: (M,), or (M, first x second).
    """
    points = torus_grid(first, second)
    one = torch.ones(1, dtype=torch.float64)
    x, y = on_circle(angle), on_circle(points[:, 0])
    w = torch.from_numpy(tension(points[:, 1]))[:, None]
    q = torch.cat([x, one.expand(len(x), 1)], 1)
    k = w * torch.cat([y, -one.expand(len(y), 1)], 1)
    v = (torch.from_numpy(sent(points))[:, None] if values else
         torch.eye(len(y), dtype=torch.float64))
    # -f / 2 eps = w (x · y - 1) / eps.
    out = dot_product_propagation(q / eps, k, v)
    return out[:, 0] if values else out


def nearest_circle_limit(angle: np.ndarray, weighted: bool = True
                         ) -> np.ndarray:
    """Theorem 6's mean over the nearest points, Y ~ p m_0, (M,).

    m_0, the integral of exp(-c v² / 4) over the direction across, goes as
    one over the root of the Hessian c.

    Args:
        angle (ndarray): t_1 of the points x, (M,).
        weighted (bool): False leaves m_0 out, and is wrong. Defaults to True.
    """
    turn = np.arange(4096) * 2 * np.pi / 4096
    weight = 1 + CROWD * np.cos(turn)
    if weighted:
        weight = weight * tension(turn)**-0.5
    weight = weight / weight.sum()
    return np.array([weight @ np.cos(turn - t) for t in angle])


def nearest_circle_exact(angle: np.ndarray, eps: float) -> np.ndarray:
    """What :func:`nearest_circle` is for infinitely many points, (M,)."""
    turn = np.arange(4096) * 2 * np.pi / 4096
    sharp = tension(turn) / eps
    # Means of cos(m t_1) over the kernel, times its mass.
    zero, one, two = (ive(m, sharp) for m in range(3))
    height = 1 + CROWD * np.cos(turn)
    out = []
    for t in angle:
        mass = zero + CROWD * one * np.cos(t)
        cosine = one * np.cos(t) + CROWD / 2 * (zero + two * np.cos(2 * t))
        sine = one * np.sin(t) + CROWD / 2 * two * np.sin(2 * t)
        value = cosine * np.cos(turn) + sine * np.sin(turn)
        out.append((height * value).sum() / (height * mass).sum())
    return np.array(out)


def nearest_circle_change(angle: np.ndarray) -> np.ndarray:
    """Theorem 6's first order in ε on the torus, (M,).

    Each nearest point's own change, as in Theorem 5, and that of its share:
    the mass of the kernel across is p m_0 (1 + ε b).

    Args:
        angle (ndarray): t_1 of the points x, (M,).
    """
    turn = np.arange(4096) * 2 * np.pi / 4096
    share = (1 + CROWD * np.cos(turn)) * tension(turn)**-0.5
    share /= share.sum()
    hessian_across = 2 * tension(turn)
    out = []
    for t in angle:
        height = 1 + CROWD * np.cos(t)
        slope, bend = -CROWD * np.sin(t) / height, -CROWD * np.cos(t) / height
        value, rise = np.cos(turn - t), np.sin(turn - t)
        own = (2 * rise * slope - value) / hessian_across
        # 1/4 is of the fourth derivative of f, which is -c.
        b = (1 / 4 + bend) / hessian_across
        out.append(share @ own + share @ (b * value)
                   - (share @ b) * (share @ value))
    return np.array(out)
