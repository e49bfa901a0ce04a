"""The fused residual step's passes over memory, in ATen operations.

All maps of a call are (N, C, H, W) in one memory format, coefficients (N, C)
in the accumulation dtype. A CPU runs each pass block by block, so that the
operations of a pass meet their operands in the cache.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from mmstepnet.precision import accumulation_dtype

BLOCK = 1 << 18
"""Elements of a block; the few blocks of a pass fit a core's L2 cache."""

Block = tuple[slice, slice]


def rows(t: Tensor) -> Tensor:
    """View maps as (rows, pixels, inner), in the order of memory.

    One row is a channel of an image in the contiguous format, (N·C, H·W, 1),
    and an image in channels_last, (N, H·W, C).
    """
    n, c, h, w = t.shape
    if t.is_contiguous():
        return t.view(n * c, h * w, 1)
    return t.permute(0, 2, 3, 1).view(n, h * w, c)


def coefficients(t: Tensor, maps: Tensor) -> Tensor:
    """View (N, C) as (rows, 1, inner), so that it broadcasts to ``rows``."""
    return t.contiguous().view(-1, 1, 1 if maps.is_contiguous() else
                               maps.shape[1])


def blocks(maps: Tensor) -> Iterator[Block]:
    """Cut (rows, pixels, inner) into blocks of rows, long rows once more."""
    n, pixels, inner = maps.shape
    size = BLOCK if maps.device.type == 'cpu' else maps.numel()
    row_step = max(size // (pixels * inner), 1)
    pixel_step = pixels if row_step > 1 else max(size // inner, 1)
    for row in range(0, n, row_step):
        for pixel in range(0, pixels, pixel_step):
            yield slice(row, row + row_step), slice(pixel, pixel + pixel_step)


def mean(x: Tensor) -> Tensor:
    """Mean over the map, (N, C)."""
    return rows(x).mean(1, dtype=accumulation_dtype(x.dtype)).view(x.shape[:2])


def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and population variance over the map, both (N, C).

    The squares are those of the deviations, so nothing cancels where the
    mean is large.
    """
    average = torch.empty(
        x.shape[:2], dtype=accumulation_dtype(x.dtype), device=x.device)
    squares = torch.zeros_like(average)
    maps = rows(x)
    centre, total = coefficients(average, x), coefficients(squares, x)
    for row, pixel in blocks(maps):
        if pixel.start == 0:
            centre[row] = maps[row].mean(1, keepdim=True, dtype=centre.dtype)
        deviation = maps[row, pixel] - centre[row]
        total[row] += deviation.square_().sum(1, keepdim=True)
    return average, squares.div_(x.shape[2] * x.shape[3])


def step(x: Tensor, c: Tensor, centre: Tensor | None, scale: Tensor,
         shift: Tensor | None, relu: bool, in_place: bool = False) -> Tensor:
    """``x + (c - centre) * scale + shift``, rectified on request.

    Args:
        x (Tensor): State, (N, C, H, W).
        c (Tensor): Branch, (N, C, H, W).
        centre (Tensor, optional): (N, C). None is 0.
        scale (Tensor): (N, C).
        shift (Tensor, optional): (N, C). None is 0.
        relu (bool): Whether to rectify.
        in_place (bool): Whether to write into c. Defaults to False.

    Returns:
        Tensor: (N, C, H, W), in the dtype and memory format of c.
    """
    out = c if in_place else torch.empty_like(c)
    if centre is not None:
        # As in PyTorch's own BN; one operation a map less.
        shift = -centre * scale if shift is None else shift - centre * scale
    maps = [rows(t) for t in (x, c, out)]
    scale = coefficients(scale, c)
    shift = None if shift is None else coefficients(shift, c)
    for row, pixel in blocks(maps[1]):
        state, branch, target = (t[row, pixel] for t in maps)
        # Half precision is rounded once, at the end.
        total = target if target.dtype == scale.dtype else torch.empty_like(
            target, dtype=scale.dtype)
        branch = branch.to(scale.dtype)
        if shift is None:
            torch.mul(branch, scale[row], out=total)
        else:
            torch.addcmul(shift[row], branch, scale[row], out=total)
        total.add_(state)
        if relu:
            total.relu_()
        if total is not target:
            target.copy_(total)
    return out


def reduce(grad: Tensor, out: Tensor | None, c: Tensor,
           centre: Tensor | None) -> tuple[Tensor, Tensor]:
    """First pass of the backward.

    Args:
        grad (Tensor): Gradient of the step's result, (N, C, H, W).
        out (Tensor, optional): The result, whose zeros mask the gradient;
            None where it was not rectified.
        c (Tensor): Branch, (N, C, H, W).
        centre (Tensor, optional): (N, C). None is 0.

    Returns:
        tuple: Sums over the map of the masked gradient, and of its product
        with ``c - centre``, both (N, C).
    """
    dtype = accumulation_dtype(c.dtype)
    sums = torch.zeros(c.shape[:2], dtype=dtype, device=c.device)
    products = torch.zeros_like(sums)
    sum_rows, product_rows = (coefficients(t, c) for t in (sums, products))
    if centre is None:
        centre = torch.zeros_like(sums)
    centre = coefficients(centre, c)
    grads, outs, maps = (None if t is None else rows(t)
                         for t in (grad, out, c))
    for row, pixel in blocks(maps):
        part = grads[row, pixel]
        if out is not None:
            part = _mask(part, outs[row, pixel])
        part_sum, part_product = _sums(
            part.to(dtype), maps[row, pixel].to(dtype), centre[row])
        sum_rows[row] += part_sum
        product_rows[row] += part_product
    return sums, products


def _mask(grad: Tensor, out: Tensor) -> Tensor:
    """Gradient before the rectifier whose result was ``out``."""
    return torch.ops.aten.threshold_backward(grad, out, 0)


def _sums(grad: Tensor, maps: Tensor,
          centre: Tensor) -> tuple[Tensor, Tensor]:
    """Sums of ``grad`` and ``grad * (maps - centre)`` over the pixels."""
    n, pixels, inner = maps.shape
    if n > 1 and inner > 1:
        return (grad.sum(1, keepdim=True),
                (maps - centre).mul_(grad).sum(1, keepdim=True))
    # Both in one pass, as the gradients of a BN's bias and weight: its
    # channels are the rows here, or a single row's inner dimension.
    if inner == 1:
        grad, maps = (t.view(1, n, pixels, 1) for t in (grad, maps))
    else:
        grad, maps = (t.transpose(1, 2)[..., None] for t in (grad, maps))
    _, products, sums = torch.ops.aten.native_batch_norm_backward(
        grad, maps, None, None, None, centre.flatten(),
        torch.ones_like(centre).flatten(), True, 0.0, (False, True, True))
    return sums.view_as(centre), products.view_as(centre)


def gradients(
        grad: Tensor, out: Tensor | None, c: Tensor | None,
        centre: Tensor | None, scale: Tensor, slope: Tensor | None,
        offset: Tensor | None, x_offset: Tensor | None, needs_x: bool,
        needs_c: bool) -> tuple[Tensor | None, Tensor | None]:
    """Second pass of the backward.

    With g the masked gradient, ``dx = g + x_offset`` and
    ``dc = g * scale + (c - centre) * slope + offset``.

    Args:
        grad (Tensor): Gradient of the step's result, (N, C, H, W).
        out (Tensor, optional): The result, whose zeros mask the gradient;
            None where it was not rectified.
        c (Tensor, optional): Branch, (N, C, H, W); None without ``slope``.
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
    if out is None and x_offset is None:
        grad_x = grad if needs_x else None
    else:
        grad_x = torch.empty_like(grad) if needs_x else None
    grad_c = torch.empty_like(grad) if needs_c else None
    outs, c_maps, x_grads, c_grads = (None if t is None else rows(t)
                                      for t in (out, c, grad_x, grad_c))
    grads = rows(grad)
    dtype = scale.dtype
    if slope is not None:
        # One operation a map less; the term is small beside the other.
        centred = -centre * slope
        offset = centred if offset is None else offset + centred
    scale, slope, offset, x_offset = (
        None if t is None else coefficients(t, grad)
        for t in (scale, slope, offset, x_offset))
    for row, pixel in blocks(grads):
        part = grads[row, pixel]
        if out is not None:
            part = _mask(part, outs[row, pixel])
        part = part.to(dtype)
        if needs_c:
            target = c_grads[row, pixel]
            total = (target if target.dtype == dtype else torch.empty_like(
                target, dtype=dtype))
            if slope is not None:
                torch.addcmul(offset[row], c_maps[row, pixel].to(dtype),
                              slope[row], out=total)
                total.addcmul_(part, scale[row])
            else:
                torch.mul(part, scale[row], out=total)
                if offset is not None:
                    total.add_(offset[row])
            if total is not target:
                target.copy_(total)
        if needs_x and grad_x is not grad:
            target = x_grads[row, pixel]
            if x_offset is None:
                target.copy_(part)
            elif target.dtype == dtype:
                torch.add(part, x_offset[row], out=target)
            else:
                target.copy_(part + x_offset[row])
    return grad_x, grad_c
