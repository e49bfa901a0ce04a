"""The passes over the maps of a tail by PyTorch's own operations.

They serve CPUs, and the tests as the oracle of the Triton kernels. No
operation of PyTorch scales each channel of each image in one fast pass, or
sums them about a mean. But a BN in eval mode scales each channel, and its
derivatives for weight and bias are such sums; and N contiguous images of C
channels are one image of N C channels as well, see :func:`_views`.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from mmstepnet.precision import accumulation_dtype

from . import formulas
from .formulas import ATEN, Parameters, Saved, TailSpec, constants


def forward(spec: TailSpec, x: Tensor, c: Tensor,
            learned: Parameters) -> tuple[Tensor, Saved]:
    """Take the tail; running statistics are updated.

    Args:
        spec (TailSpec): What it does.
        x (Tensor): State, (N, C, H, W).
        c (Tensor): Output of the branch's convolution, likewise, in the same
            memory format.
        learned (Parameters): Its parameters.

    Returns:
        tuple: The result, and what :func:`backward` needs.
    """
    wide = accumulation_dtype(c.dtype)
    learned, out = Parameters(*(t.to(wide) for t in learned)), None
    if not spec.norm.batch:
        mean, var = spec.norm.mean.to(wide), spec.norm.var.to(wide)
        centred = c.mean((2, 3), dtype=wide) - mean
    elif c.is_contiguous():
        out, mean, var, centred = _moments(c, wide)
    else:
        given = None, None
        if c.dtype != wide:  # without them moments are rounded to c's dtype
            given = constants(c.shape[1], wide, c.device)
        mean, var = torch.batch_norm_update_stats(c, *given, 0.)
        centred = c.mean((2, 3), dtype=wide) - mean
    scale, shift, saved = formulas.forward(
        spec, learned, x.mean((2, 3), dtype=wide), mean, var, centred,
        c.numel() // c.shape[1])
    shift = torch.addcmul(shift, mean, scale, value=-1)
    out = _affine(c, scale, shift, out).add_(x)
    return (out.relu_() if spec.relu else out), saved


def backward(spec: TailSpec, grad: Tensor, out: Tensor | None, c: Tensor,
             learned: Parameters, saved: Iterable[Tensor],
             ) -> tuple[Tensor, Tensor, Parameters]:
    """The derivatives of :func:`forward`.

    Args:
        spec (TailSpec): What the tail does.
        grad (Tensor): Gradient of the result, (N, C, H, W).
        out (Tensor, optional): The result; None where it was not rectified.
        c (Tensor): Output of the branch's convolution.
        learned (Parameters): Its parameters.
        saved (Iterable): What the forward returned.

    Returns:
        tuple: dx, dc and the gradients of the parameters.
    """
    saved = Saved(*saved)
    mean, scale = saved.mean, saved.scale
    masked = grad if out is None else ATEN.threshold_backward(grad, out, 0)
    slope, offset, x_offset, d_learned = formulas.backward(
        spec, Parameters(*(t.to(scale.dtype) for t in learned)), saved,
        *_sums(masked, c, mean), c.shape[2] * c.shape[3])
    d_c = _affine(masked, scale, offset)
    if slope is not None and c.dtype == scale.dtype:  # without cancelling
        d_c.addcmul_(c - mean[:, None, None], slope[:, None, None])
    elif slope is not None:
        slope = slope.expand_as(scale)
        d_c.add_(_affine(c, slope, -mean * slope))
    x_offset = x_offset.to(c.dtype)[..., None, None]
    d_x = masked + x_offset if out is None else masked.add_(x_offset)
    return d_x, d_c, d_learned


def _views(maps: Tensor) -> tuple[Tensor, ...]:
    """Images of many channels: one of N C, or in channels_last N of C."""
    if maps.is_contiguous():
        return maps.view(1, -1, *maps.shape[2:]),
    return maps.split(1)


def _moments(c: Tensor, wide: torch.dtype) -> tuple[Tensor, ...]:
    """Memory for a map, μ, σ² and M - μ of a contiguous c.

    Of a mean of a thousand deviations μ keeps few digits, of the deviations
    from it all: what is left of their mean corrects it.
    """
    centre = c.mean((0, 2, 3), dtype=wide).to(c.dtype)
    out = c - centre[:, None, None]
    centred = out.mean((2, 3), dtype=wide)
    rest = centred.mean(0)
    square = torch.linalg.vector_norm(out, dim=(2, 3), dtype=wide).square()
    var = square.sum(0) / (c.numel() // len(rest)) - rest.square()
    return out, centre + rest, var, centred - rest


def _affine(maps: Tensor, scale: Tensor, shift: Tensor,
            out: Tensor | None = None) -> Tensor:
    """``maps * scale + shift``, vectors (N, C), in one pass."""
    if maps.dtype == scale.dtype and not maps.is_contiguous():
        return torch.addcmul(shift[..., None, None], maps,
                             scale[..., None, None])
    views, out = _views(maps), torch.empty_like(maps) if out is None else out
    zero, one = constants(views[0].shape[1], scale.dtype, scale.device)
    nothing = scale.new_empty(0)  # a view would be written to, too
    vectors = (v.reshape(len(views), -1).unbind() for v in (scale, shift))
    for view, result, weight, bias in zip(views, _views(out), *vectors):
        torch.native_batch_norm(
            view, weight, bias, zero, one, False, 0., 0.,
            out=(result, nothing, nothing))
    return out


def _sums(grad: Tensor, c: Tensor, centre: Tensor) -> tuple[Tensor, Tensor]:
    """Sums over the pixels of g and of g (c - centre), (N, C) each."""
    views, shape = _views(c), c.shape[:2]
    if len(views) < len(c):
        centre = centre.expand(shape).reshape(-1)
    _, one = constants(len(centre), centre.dtype, c.device)
    found = [ATEN.native_batch_norm_backward(
        g, view, None, centre, one, None, None, False, 0.,
        (False, True, True))[:0:-1] for g, view in zip(_views(grad), views)]
    total, product = found[0] if len(found) == 1 else map(
        torch.cat, zip(*found))
    return (total.view(shape).to(one.dtype),
            product.view(shape).to(one.dtype))
