"""The residual step in as few passes over memory as a plain ResNet's."""

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

import torch
import torch.nn as nn
from torch import Tensor
from torch.autograd import Function

from mmstepnet.attentions import ChannelGate, pooling
from mmstepnet.precision import accumulation_dtype
from mmstepnet.torch_version import is_compiling, is_transformed

from .kernels import aten, inductor

SERVED = {'x_mean', 'f_mean', 'f_std'}
"""Statistics that the fused path knows how to pass on."""


class fused:
    """Switch the fused residual step on or off; it is on by default.

    Works like ``torch.set_grad_enabled``: as a call from there on, as a
    context manager inside it.

    Args:
        mode (bool): Whether :class:`ResidualStep` may take the fused path.

    Example:
        >>> from mmstepnet import steps
        >>> with steps.fused(False):
        ...     steps.is_fused()
        False
    """

    enabled = True

    def __init__(self, mode: bool):
        self.previous = fused.enabled
        fused.enabled = bool(mode)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc) -> None:
        fused.enabled = self.previous


def is_fused() -> bool:
    """Whether :class:`ResidualStep` may take the fused path."""
    return fused.enabled


def serves(x: Tensor, branch: Tensor, norm: nn.Module | None,
           step: nn.Module) -> bool:
    """Whether the fused path gives what the reference path would.

    It does not where somebody looks at, transforms or replaces a part of it:
    compilers, tracers and exporters, functorch and forward-mode derivatives,
    module hooks, another norm or activation, an active stochastic depth, a
    map attention, a gate whose norm synchronises over ranks.

    Args:
        x (Tensor): State x_t, (N, C, H, W).
        branch (Tensor): Output of the branch's last convolution.
        norm (nn.Module, optional): The norm behind it.
        step (ResidualStep): The module that takes the step.
    """
    if (is_compiling() or not fused.enabled
            or not isinstance(step.attention, ChannelGate)
            or not SERVED.issuperset(step.attention.pooled)):
        return False
    if is_transformed() or torch.autograd.forward_ad._current_level >= 0:
        return False
    return (_are_plain_maps(x, branch) and _is_plain_norm(norm, branch)
            and type(step.activation) in (nn.ReLU, nn.Identity)
            and (type(step.drop_path) is nn.Identity
                 or not step.drop_path.training)
            and not _is_hooked(step, norm)
            and not any('Sync' in type(m).__name__  # PyTorch's and MMCV's
                        for m in step.attention.modules()))


def _are_plain_maps(x: Tensor, branch: Tensor) -> bool:
    plain = (Tensor, nn.Parameter)  # neither proxies nor fake tensors
    return (type(x) in plain and type(branch) in plain
            and branch.is_floating_point() and x.dtype == branch.dtype
            and x.device == branch.device and x.layout == torch.strided
            and branch.layout == torch.strided and x.shape == branch.shape
            and branch.ndim == 4 and branch.numel() > 0)


def _is_plain_norm(norm: nn.Module | None, branch: Tensor) -> bool:
    if _is_identity(norm):
        return True
    # The type exactly: IEBN is a BatchNorm2d too.
    return (type(norm) is nn.BatchNorm2d and norm.affine
            and norm.num_features == branch.shape[1]
            # One value a channel: the reference path raises the error.
            and branch.numel() > branch.shape[1])


def _is_identity(norm: nn.Module | None) -> bool:
    return norm is None or type(norm) is nn.Identity


def _is_hooked(step: nn.Module, norm: nn.Module | None) -> bool:
    everywhere = nn.modules.module
    if (everywhere._global_forward_hooks
            or everywhere._global_forward_pre_hooks
            or everywhere._global_backward_hooks
            or everywhere._global_backward_pre_hooks):
        return True
    inner = [module for module in step.modules() if module is not step]
    return any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks
               or m._backward_pre_hooks
               for m in (*inner, *([] if norm is None else [norm])))


def fused_residual_step(x: Tensor, branch: Tensor,
                        norm: nn.BatchNorm2d | None, attention: nn.Module,
                        relu: bool) -> Tensor:
    r"""Take the step ``x + attention(x, f) * f`` with ``f = norm(branch)``.

    BN is affine, so GAP(f) follows from GAP(branch), and f need not exist:

    .. math::
        x_{t+1} = x_t + \Delta t\, \alpha (c - \mu) + \Delta t\, \beta,
        \qquad \alpha = \gamma / \sqrt{\sigma^2 + \epsilon}

    Forward: one pass over c gives BN's statistics and GAP(f), one pools x_t,
    one writes the result. Backward: two passes. Only c, the result and
    (N, C) coefficients are saved, as by BN and ReLU. Derivatives of second
    order are those of the same formulas, in plain operations. Without
    gradients and without a norm, the result is written into ``branch``.

    Args:
        x (Tensor): State x_t, (N, C, H, W).
        branch (Tensor): Output of the branch's last convolution,
            (N, C, H, W).
        norm (nn.BatchNorm2d, optional): Norm behind it, which keeps its
            running statistics as ever. None is f = branch.
        attention (ChannelGate): What chooses the step.
        relu (bool): Whether to rectify the result.

    Returns:
        Tensor: State x_{t+1}, (N, C, H, W).
    """
    memory_format = _format(branch)
    x = x.contiguous(memory_format=memory_format)
    branch = branch.contiguous(memory_format=memory_format)
    dtype = accumulation_dtype(branch.dtype)
    pooled = attention.pooled
    if _is_identity(norm):  # an Identity is what `fold` leaves of a norm
        norm = None
    normalises = norm is not None and (norm.training
                                       or norm.running_mean is None)
    x, branch, x_mean, c_mean, c_var = _Pool.apply(
        x, branch, 'x_mean' in pooled, 'f_mean' in pooled,
        normalises or 'f_std' in pooled)
    if norm is None:
        alpha, beta, mean = 1.0, None, None
        f_mean, f_var = c_mean, c_var
    else:
        mean, var = _statistics(norm, normalises, branch, c_mean, c_var)
        alpha = norm.weight.to(dtype) * (var + norm.eps).rsqrt()
        beta = norm.bias.to(dtype)
        f_mean = f_var = None
        if c_mean is not None:
            f_mean = torch.addcmul(beta, c_mean - mean, alpha)
        if 'f_std' in pooled:
            f_var = c_var * alpha.square()
    known = {'x_mean': x_mean, 'f_mean': f_mean}
    if f_var is not None:
        known['f_std'] = (f_var + pooling.EPS).sqrt()
    # Not rounded to half precision, as the reference path's step is.
    delta = attention(*(known[name] for name in pooled)).to(dtype)
    if norm is None and not torch.is_grad_enabled():
        # The hosts, too, add into what comes out of the last layer.
        return backend(branch).step(
            x, branch, None, delta, None, relu, in_place=True)
    return _Step.apply(x, branch, mean, delta * alpha,
                       None if beta is None else delta * beta, relu,
                       branch.grad_fn)


def _format(maps: Tensor) -> torch.memory_format:
    last = (not maps.is_contiguous()
            and maps.is_contiguous(memory_format=torch.channels_last))
    return torch.channels_last if last else torch.contiguous_format


def _statistics(norm: nn.BatchNorm2d, normalises: bool, branch: Tensor,
                c_mean: Tensor,
                c_var: Tensor) -> tuple[Tensor, Tensor]:
    """BN's mean and variance, (C,); keeps the running statistics."""
    if not normalises:
        dtype = accumulation_dtype(branch.dtype)
        return norm.running_mean.to(dtype), norm.running_var.to(dtype)
    mean = c_mean.mean(0)
    deviation = c_mean - mean
    var = torch.addcmul(c_var, deviation, deviation).mean(0)
    if norm.training and norm.track_running_stats:
        with torch.no_grad():
            momentum = norm.momentum
            if norm.num_batches_tracked is not None:
                norm.num_batches_tracked.add_(1)
                if momentum is None:
                    momentum = 1 / norm.num_batches_tracked.to(mean.dtype)
            count = branch.numel() // branch.shape[1]
            unbiased = var * (count / (count - 1))
            for running, batch in ((norm.running_mean, mean),
                                   (norm.running_var, unbiased)):
                running.lerp_(batch.to(running.dtype), momentum)
    return mean, var


class _Pool(Function):
    """Maps to what is known of them: (N, C) means and variances.

    Returns x and c too, so that every gradient of theirs comes through here.
    The gradient of c is ``scale * g`` plus what flows back through the pooled
    quantities. To write it once, :class:`_Step`'s backward, which comes first,
    gives the masked gradient g as that of x, which it is, none for c, and
    leaves the rest in ``ctx.left``. Where the gradient is itself
    differentiated, it leaves c alone: a checkpoint lets saved tensors be
    looked at once.
    """

    @staticmethod
    def forward(ctx, x, c, x_mean, c_mean, c_var):
        ctx.set_materialize_grads(False)
        ctx.left = None
        ops = backend(c)
        p = ops.mean(x) if x_mean else None
        q = v = None
        if c_var:
            q, v = ops.moments(c)
        elif c_mean:
            q = ops.mean(c)
        ctx.save_for_backward(c, q)
        return x, c, p, q, v

    @staticmethod
    def backward(ctx, grad_x, grad_c, grad_p, grad_q, grad_v):
        left, ctx.left = ctx.left, None
        c, centre = (ctx.saved_tensors if left is None else
                     (left.branch, left.centre))
        pixels = c.shape[2] * c.shape[3]
        x_offset = None if grad_p is None else grad_p / pixels
        offset = None if grad_q is None else grad_q / pixels
        slope = None if grad_v is None else grad_v * (2 / pixels)
        if left is not None and left.scale is not None:
            grads = backend(c).gradients(
                grad_x, left.out, c, centre, left.scale, slope, offset,
                x_offset, *ctx.needs_input_grad[:2])
            return *grads, None, None, None
        if x_offset is not None:
            grad_x = _add(grad_x, _as_map(x_offset), c)
        if offset is not None:
            grad_c = _add(grad_c, _as_map(offset), c)
        if slope is not None:
            if centre is None:
                centre = c.mean((2, 3), dtype=accumulation_dtype(c.dtype))
            grad_c = _add(grad_c, (c - _as_map(centre)) * _as_map(slope), c)
        return grad_x, grad_c, None, None, None


@dataclass
class _Left:
    """What :class:`_Step`'s backward leaves for :class:`_Pool`'s.

    Nothing that leads back to _Pool: it would never be freed where that does
    not run, as when only the gate's gradient is wanted.
    """

    branch: Tensor
    out: Tensor | None = None
    centre: Tensor | None = None
    scale: Tensor | None = None


class _Step(Function):
    """``x + (c - centre) * scale + shift``, rectified on request."""

    @staticmethod
    def forward(ctx, x, c, centre, scale, shift, relu, pool):
        # c is saved once: by _Pool, where that has a backward.
        ctx.pool = pool
        out = backend(c).step(x, c, _wide(centre, scale), scale, shift, relu)
        ctx.save_for_backward(c if pool is None else None,
                              out if relu else None, centre, scale)
        return out

    @staticmethod
    def backward(ctx, grad):
        c, out, centre, scale = ctx.saved_tensors
        pool = ctx.pool
        row_mean = None
        if pool is not None:
            c, row_mean = pool.saved_tensors
            pool.left = _Left(c)
        if torch.is_grad_enabled():
            masked = grad if out is None else grad * (out > 0)
            wide = masked.to(scale.dtype)
            deviation = c if centre is None else c - _as_map(centre[None])
            grad_c = (wide * _as_map(scale)).to(c.dtype)
            products = (wide * deviation).sum((2, 3))
            sums = wide.sum((2, 3))
        else:
            grad = grad.contiguous(memory_format=_format(c))
            sums, products = backend(c).reduce(grad, out, c,
                                               _wide(centre, scale))
            masked = grad_c = None
            if pool is not None:
                masked = grad
                pool.left = _Left(*(t if t is None else t.detach()
                                    for t in (c, out, row_mean, scale)))
        grad_centre = None
        if ctx.needs_input_grad[2]:
            grad_centre = (sums * scale).sum(0).neg()
        if not ctx.needs_input_grad[4]:
            sums = None
        return masked, grad_c, grad_centre, products, sums, None, None


def _add(total: Tensor | None, term: Tensor, like: Tensor) -> Tensor:
    term = term.to(like.dtype).expand_as(like)
    return term if total is None else total + term


def _as_map(t: Tensor) -> Tensor:
    return t[..., None, None]


def _wide(centre: Tensor | None, scale: Tensor) -> Tensor | None:
    return None if centre is None else centre.expand_as(scale)


def backend(maps: Tensor) -> ModuleType:
    """Module that holds the passes over memory for such maps."""
    if maps.is_cuda:
        return _triton()
    if (maps.device.type == 'cpu' and maps.numel() >= inductor.SMALLEST
            and inductor.is_available()):
        return inductor
    return aten


@cache
def _triton() -> ModuleType:
    """Triton's kernels where Triton 3 is installed, else ATen's operations."""
    if find_spec('triton') is None or int(
            import_module('triton').__version__.split('.')[0]) < 3:
        return aten
    return import_module('mmstepnet.steps.kernels.triton_kernels')
