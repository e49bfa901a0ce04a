"""The residual step's passes over memory, in plain PyTorch.

All maps of a call are (N, C, H, W) in one memory format, vectors (N, C) in
the accumulation dtype. Inductor makes a loop of each pass for the CPU; they
are differentiable, too. Sums come in spans of a map, (S, N, C), which
:mod:`mmstepnet.steps.vectors` joins; here S is 1.
"""

from torch import Tensor, where

from mmstepnet.precision import full_precision


def spans(maps: Tensor) -> tuple[int, int]:
    """Pixels of a map, and of each of its spans but the last."""
    pixels = maps.shape[2] * maps.shape[3]
    return pixels, pixels


def total(x: Tensor) -> Tensor:
    """Sums over the spans, (S, N, C)."""
    return _sum(_lines(full_precision(x)))[None]


def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Means, and sums of squared deviations from them, both (S, N, C).

    The deviations are those from the mean of a line, so that one pass is
    enough and nothing cancels where the mean is large (Chan et al., 1979).
    """
    lines = _lines(full_precision(x))
    line_means = lines.mean(3)
    squares = _sum((lines - line_means[..., None]).square())
    means = line_means.mean(2)
    between = (line_means - means[..., None]).square().sum(2)
    return means[None], (squares + between * lines.shape[3])[None]


def step(x: Tensor, c: Tensor, centre: Tensor | None, scale: Tensor,
         shift: Tensor | None, relu: bool) -> Tensor:
    """``x + (c - centre) * scale + shift``, rectified on request.

    Args:
        x (Tensor): State, (N, C, H, W).
        c (Tensor): Branch, (N, C, H, W).
        centre (Tensor, optional): (C,). None is 0.
        scale (Tensor): (N, C).
        shift (Tensor, optional): (N, C). None is 0.
        relu (bool): Whether to rectify.

    Returns:
        Tensor: (N, C, H, W), in the dtype and memory format of c.
    """
    residual = _deviation(c, centre, scale) * _as_map(scale)
    if shift is not None:
        residual = residual + _as_map(shift)
    out = x + residual
    return (out.relu() if relu else out).to(c.dtype)


def reduce(grad: Tensor, out: Tensor | None, c: Tensor,
           centre: Tensor | None) -> tuple[Tensor, Tensor]:
    """First pass of the backward.

    Args:
        grad (Tensor): Gradient of the step's result, (N, C, H, W).
        out (Tensor, optional): The result, whose zeros mask the gradient;
            None where it was not rectified.
        c (Tensor): Branch, (N, C, H, W).
        centre (Tensor, optional): (C,). None is 0.

    Returns:
        tuple: Sums over the spans of the masked gradient, and of its product
        with ``c - centre``, both (S, N, C).
    """
    grad = full_precision(_mask(grad, out))
    products = grad * _deviation(c, centre, grad)
    return _sum(_lines(grad))[None], _sum(_lines(products))[None]


def gradients(
        grad: Tensor, out: Tensor | None, c: Tensor, centre: Tensor | None,
        scale: Tensor, slope: Tensor | None, offset: Tensor | None,
        x_offset: Tensor | None, needs_x: bool,
        needs_c: bool) -> tuple[Tensor | None, Tensor | None]:
    """Second pass of the backward.

    With g the masked gradient, ``dx = g + x_offset`` and
    ``dc = g * scale + (c - centre) * slope + offset``.

    Args:
        grad (Tensor): Gradient of the step's result, (N, C, H, W).
        out (Tensor, optional): The result, whose zeros mask the gradient;
            None where it was not rectified.
        c (Tensor): Branch, (N, C, H, W).
        centre (Tensor, optional): (N, C); None without ``slope``.
        scale (Tensor): (N, C).
        slope (Tensor, optional): (N, C). None is 0.
        offset (Tensor, optional): (N, C). None is 0.
        x_offset (Tensor, optional): (N, C). None is 0.
        needs_x (bool): Whether dx is wanted.
        needs_c (bool): Whether dc is wanted.

    Returns:
        tuple: dx and dc, (N, C, H, W), or None where not wanted.
    """
    masked = full_precision(_mask(grad, out))
    grad_x = grad_c = None
    if needs_x:
        grad_x = masked if x_offset is None else masked + _as_map(x_offset)
        grad_x = grad_x.to(grad.dtype)
    if needs_c:
        grad_c = masked * _as_map(scale)
        if slope is not None:
            grad_c = grad_c + _deviation(c, centre, scale) * _as_map(slope)
        if offset is not None:
            grad_c = grad_c + _as_map(offset)
        grad_c = grad_c.to(grad.dtype)
    return grad_x, grad_c


def _lines(maps: Tensor) -> Tensor:
    """View maps as (N, C, lines, pixels), to be summed in that order.

    A contiguous map is one line; in channels_last a line is a row of the
    image, all channels of which a loop reads together.
    """
    return maps.flatten(2)[:, :, None] if maps.is_contiguous() else maps


def _sum(lines: Tensor) -> Tensor:
    return lines.sum(3).sum(2)


def _mask(grad: Tensor, out: Tensor | None) -> Tensor:
    """Gradient before the rectifier whose result was ``out``."""
    return grad if out is None else where(out <= 0, 0, grad)


def _deviation(c: Tensor, centre: Tensor | None, like: Tensor) -> Tensor:
    c = c.to(like.dtype)
    return c if centre is None else c - _as_map(centre)


def _as_map(vector: Tensor) -> Tensor:
    return vector[..., None, None]
