"""The passes over the maps of a tail by PyTorch's own operations.

They serve CPUs, float64 on CUDA, and the tests as the oracle of the Triton
kernels. No operation of PyTorch scales each channel of each image in one fast
pass, or sums them about a mean. But a BN in eval mode scales each channel,
and its derivatives for weight and bias are such sums; and N contiguous images
of C channels are one image of N C channels as well, see :func:`_views`.
"""

from functools import lru_cache

import torch
from torch import Tensor

from mmstepnet.precision import accumulation_dtype

from . import formulas
from .formulas import (
    ATEN,
    Batch,
    Learned,
    Running,
    Saved,
    TailSpec,
    widen,
)


def forward(spec: TailSpec, x: Tensor, c: Tensor, learned: Learned,
            norm_running: Running,
            gate_running: Running) -> tuple[Tensor, Saved]:
    """Take the tail; running statistics are updated.

    Args:
        spec (TailSpec): What it does.
        x (Tensor): State, (N, C, H, W).
        c (Tensor): Output of the branch's convolution, likewise, in the same
            memory format.
        learned (Learned): Parameters.
        norm_running (Running): Of the block's norm.
        gate_running (Running): Of the gate's.

    Returns:
        tuple: The result, and what :func:`backward` needs.
    """
    wide = accumulation_dtype(c.dtype)
    learned = Learned(*widen(learned, wide))
    x_mean = x.mean((2, 3), dtype=wide)
    batch = out = None
    if spec.norm == 'batch':
        out, c_mean, batch = _moments(c, wide)
    else:
        c_mean = c.mean((2, 3), dtype=wide)
    scale, shift, saved = formulas.forward(
        spec, learned, norm_running, gate_running, x_mean, c_mean, batch)
    if shift is not None:
        shift = torch.addcmul(shift, saved.mean, scale, value=-1)
    out = _affine(c, scale, shift, out).add_(x)
    return (out.relu_() if spec.relu else out), saved


def backward(spec: TailSpec, grad: Tensor, out: Tensor | None, c: Tensor,
             learned: Learned, gate_running: Running, saved: Saved,
             needs_x: bool, needs_c: bool,
             ) -> tuple[Tensor | None, Tensor | None, Learned]:
    """The derivatives of :func:`forward`.

    Args:
        spec (TailSpec): What the tail does.
        grad (Tensor): Gradient of the result, (N, C, H, W).
        out (Tensor, optional): The result; None where it was not rectified.
        c (Tensor): Output of the branch's convolution.
        learned (Learned): Parameters.
        gate_running (Running): What the gate's norm took, if these.
        saved (Saved): What the forward returned.
        needs_x (bool): Whether dx is wanted.
        needs_c (bool): Whether dc is wanted.

    Returns:
        tuple: dx and dc, None where not wanted, and the gradients of the
        parameters.
    """
    learned = Learned(*widen(learned, saved.z.dtype))
    masked = grad
    if out is not None:
        masked = ATEN.threshold_backward(grad, out, 0)
    (scale, slope, offset, x_offset), d_learned = formulas.backward(
        spec, learned, gate_running, saved, *_sums(masked, c, saved.mean),
        c.shape[2] * c.shape[3])
    d_x = d_c = None
    if needs_c and slope is None:
        d_c = _affine(masked, scale, offset)
    elif needs_c:
        slope = slope.expand_as(scale)
        if c.is_contiguous():  # (c - μ) slope, without cancelling
            d_c = _affine(c, torch.ones_like(scale),
                          -saved.mean.expand_as(scale))
            _affine(d_c, slope, offset, d_c)
        else:
            offset = torch.addcmul(offset, saved.mean, slope, value=-1)
            d_c = _affine(c, slope, offset)
        if c.dtype == scale.dtype:
            d_c.addcmul_(masked, scale[..., None, None])
        else:
            d_c.add_(_affine(masked, scale))
    if needs_x:
        x_offset = x_offset.to(c.dtype)[..., None, None]
        d_x = masked + x_offset if out is None else masked.add_(x_offset)
    return d_x, d_c, d_learned


def _views(maps: Tensor) -> tuple[Tensor, ...]:
    """Images of many channels: one of N C, or in channels_last N of C."""
    if maps.is_contiguous():
        return maps.view(1, -1, *maps.shape[2:]),
    return maps.split(1)


def _rows(views: tuple[Tensor, ...], vectors: Tensor) -> tuple[Tensor, ...]:
    """Vectors, (N, C), for the channels of each of :func:`_views`."""
    return vectors.reshape(len(views), -1).unbind()


def _moments(c: Tensor, wide: torch.dtype) -> tuple[
        Tensor | None, Tensor, Batch]:
    """Memory for a map, M, and the statistics of the batch."""
    n, _, height, width = c.shape
    count = n * height * width
    c_mean = c.mean((2, 3), dtype=wide)
    if not c.is_contiguous():
        given = None, None
        if c.dtype != wide:  # without them moments are rounded to c's dtype
            given = torch.zeros_like(c_mean[0]), torch.ones_like(c_mean[0])
        mean, var = torch.batch_norm_update_stats(c, *given, 0.)
        return None, c_mean, Batch(mean, var, c_mean - mean, count)
    # Of a mean of a thousand deviations M keeps few digits, of the deviations
    # from it all: what is left of their mean corrects it.
    out = _affine(c, torch.ones_like(c_mean), -c_mean)
    square = torch.linalg.vector_norm(out, dim=(2, 3), dtype=wide).square()
    mean = c_mean.sum(0) / n
    centred = (c_mean - mean).add_(out.mean((2, 3), dtype=wide))
    rest = centred.sum(0) / n
    centred -= rest
    var = torch.addcmul(square / (height * width), centred, centred).mean(0)
    return out, c_mean, Batch(mean + rest, var, centred, count)


@lru_cache(64)
def _constants(size: int, dtype: torch.dtype,
               device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Zeros, ones and nothing.

    To make them anew takes longer than small maps do.
    """
    with torch.inference_mode(False):
        return tuple(torch.full((size, ), value, dtype=dtype, device=device)
                     for value in (0., 1.)) + (
                         torch.empty(0, dtype=dtype, device=device), )


def _affine(maps: Tensor, scale: Tensor, shift: Tensor | None = None,
            out: Tensor | None = None) -> Tensor:
    """``maps * scale + shift``, vectors (N, C), in one pass."""
    shift = torch.zeros_like(scale) if shift is None else shift
    if maps.dtype == scale.dtype and not maps.is_contiguous():
        return torch.addcmul(shift[..., None, None], maps,
                             scale[..., None, None])
    if out is None:
        out = torch.empty_like(maps)
    views = _views(maps)
    zero, one, unused = _constants(views[0].shape[1], scale.dtype,
                                   scale.device)
    for view, result, weight, bias in zip(
            views, _views(out), _rows(views, scale), _rows(views, shift)):
        torch.native_batch_norm(view, weight, bias, zero, one, False, 0., 0.,
                                out=(result, unused, unused))
    return out


def _sums(grad: Tensor, c: Tensor,
          centre: Tensor | None) -> tuple[Tensor, Tensor]:
    """Sums over the pixels of g and of g (c - centre), (N, C) each."""
    views, shape = _views(c), c.shape[:2]
    zero, one, _ = _constants(views[0].shape[1], accumulation_dtype(c.dtype),
                              c.device)
    if centre is None:
        centre = zero
    elif len(centre) != len(zero):
        centre = centre.expand(shape).reshape(-1)
    found = [ATEN.native_batch_norm_backward(
        g, view, None, centre, one, None, None, False, 0.,
        (False, True, True)) for g, view in zip(_views(grad), views)]
    _, product, total = found[0] if len(found) == 1 else map(
        torch.cat, zip(*((one, *f[1:]) for f in found)))
    return (total.view(shape).to(one.dtype),
            product.view(shape).to(one.dtype))
