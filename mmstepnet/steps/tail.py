"""The tail of a residual block in as few passes over memory as a plain one."""

from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType

import torch
import torch.nn as nn
from torch import Tensor
from torch.autograd import Function

from mmstepnet.attentions import ChannelGate

from .compiled import compiled, compiled_on_gpu
from .kernels import backend, plain
from .vectors import (
    Formulas,
    Vectors,
    backward_vectors,
    centre_of,
    forward_vectors,
    pool,
)


def fused_residual_step(x: Tensor, branch: Tensor, norm: nn.Module | None,
                        gate: ChannelGate, relu: bool) -> Tensor:
    r"""Take the step ``x + gate(x, f) * f`` with ``f = norm(branch)``.

    BN is affine, so GAP(f) follows from GAP(branch), and f need not exist:

    .. math::
        x_{t+1} = x_t + \Delta t\, \alpha (c - \mu) + \Delta t\, \beta,
        \qquad \alpha = \gamma / \sqrt{\sigma^2 + \epsilon}

    Forward: one pass over c gives BN's statistics and GAP(f), one pools x_t,
    one writes the result. Backward: two passes. Only c, the result and
    (N, C) vectors are saved, as by BN and ReLU; the gate, a function of
    vectors, is called once more. On a CPU each direction is one compiled
    function, on CUDA what lies between Triton's passes is. Derivatives of
    second order are those of the same functions, uncompiled.

    Args:
        x (Tensor): State x_t, (N, C, H, W).
        branch (Tensor): Output of the branch's last convolution,
            (N, C, H, W).
        norm (nn.Module, optional): Norm behind it, a BN or torchvision's
            frozen one, which keeps its running statistics as ever. None is
            f = branch.
        gate (ChannelGate): What chooses the step.
        relu (bool): Whether to rectify the result.

    Returns:
        Tensor: State x_{t+1}, (N, C, H, W).
    """
    if type(norm) is nn.Identity:  # what `fold` leaves of a norm
        norm = None
    memory_format = _format(branch)
    x = x.contiguous(memory_format=memory_format)
    branch = branch.contiguous(memory_format=memory_format)
    formulas = Formulas(norm, gate, relu)
    values, moving = formulas.tensors(norm, gate)
    if torch.is_grad_enabled():
        return _Tail.apply(formulas, moving, x, branch, *values)[0]
    return _forward(formulas, x, branch, values, moving)[0]


def _format(maps: Tensor) -> torch.memory_format:
    last = (not maps.is_contiguous()
            and maps.is_contiguous(memory_format=torch.channels_last))
    return torch.channels_last if last else torch.contiguous_format


class _Tail(Function):
    """The whole tail: pool, vectors, step; backward reduce, vectors, write.

    Returns the result and what :func:`~.vectors.join` gave. Nobody else looks
    at that, but derivatives of second order come back through it.
    """

    @staticmethod
    def forward(ctx, formulas, moving, x, c, *values):
        ctx.set_materialize_grads(False)
        ctx.formulas, ctx.moving = formulas, moving
        out, ctx.centre, *pooled = _forward(formulas, x, c, values, moving)
        ctx.save_for_backward(c, out if formulas.relu else None, *pooled,
                              *values)
        return out, *pooled

    @staticmethod
    def backward(ctx, grad, *grad_pooled):
        c, out, *saved = ctx.saved_tensors
        pooled, values = saved[:3], saved[3:]
        needs_x, needs_c, *needs = ctx.needs_input_grad[2:]
        if grad is None:
            grad = torch.zeros_like(c)
        grad = grad.contiguous(memory_format=_format(c))
        if torch.is_grad_enabled():
            centre = centre_of(ctx.formulas, pooled, values)
            backward = partial(_pass_back, plain, backward_vectors)
        else:
            centre, backward = ctx.centre, _backward
        grads = backward(ctx.formulas, grad, out, c, centre, pooled,
                         grad_pooled, values, ctx.moving, needs_x, needs_c)
        return None, None, *grads[:2], *(
            t if needed else None for t, needed in zip(grads[2:], needs))


def _forward(formulas: Formulas, x: Tensor, c: Tensor,
             values: Sequence[Tensor | None],
             moving: list[Tensor]) -> Vectors:
    """Result, centre, and what :func:`~.vectors.join` gave."""
    x, c, *values = _detached(x, c, *values)
    args = formulas, x, c, values, moving
    passes = backend(c) or plain
    key = _key(formulas, c)
    if passes is plain:
        return compiled(_pass_forward, *key)(
            c.device, moving, plain, forward_vectors, *args)
    return _pass_forward(passes, partial(
        compiled_on_gpu(forward_vectors, *c.shape[:2], *key), c.device,
        moving), *args)


def _pass_forward(passes: ModuleType, vectors: Callable, formulas: Formulas,
                  x: Tensor, c: Tensor, values: Sequence[Tensor | None],
                  moving: Sequence[Tensor]) -> Vectors:
    sums = pool(formulas, passes, x, c)
    pooled, (centre, scale, shift) = vectors(
        formulas, sums, *passes.spans(c), values, moving)
    out = passes.step(x, c, centre, scale, shift, formulas.relu)
    return out, centre, *pooled


def _backward(formulas: Formulas, grad: Tensor, out: Tensor | None,
              c: Tensor, centre: Tensor | None, pooled: Vectors,
              grad_pooled: Vectors, values: Sequence[Tensor | None],
              moving: list[Tensor], needs_x: bool,
              needs_c: bool) -> Vectors:
    """Gradients of x, of c and of ``values``."""
    grad, out, c, *values = _detached(grad, out, c, *values)
    pooled = _detached(*pooled)
    args = (formulas, grad, out, c, centre, pooled, grad_pooled, values,
            moving, needs_x, needs_c)
    passes = backend(c) or plain
    key = _key(formulas, c)
    if passes is plain:
        return compiled(_pass_back, *key)(
            c.device, (), plain, backward_vectors, *args)
    return _pass_back(passes, partial(
        compiled_on_gpu(backward_vectors, *c.shape[:2], *key), c.device,
        ()), *args)


def _pass_back(passes: ModuleType, vectors: Callable, formulas: Formulas,
               grad: Tensor, out: Tensor | None, c: Tensor,
               centre: Tensor | None, pooled: Vectors, grad_pooled: Vectors,
               values: Sequence[Tensor | None], moving: Sequence[Tensor],
               needs_x: bool, needs_c: bool) -> Vectors:
    sums, products = passes.reduce(grad, out, c, centre)
    (scale, slope, offset, x_offset), grads = vectors(
        formulas, sums, products, passes.spans(c)[0], pooled, grad_pooled,
        values, moving)
    return *passes.gradients(grad, out, c, pooled[1], scale, slope, offset,
                             x_offset, needs_x, needs_c), *grads


def _key(formulas: Formulas, c: Tensor) -> tuple:
    """What graphs differ by; a compiler takes equal sizes for the same."""
    n, _, height, width = c.shape
    return (type(formulas.gate), c.dtype, c.device, c.is_contiguous(), n == 2,
            height == width, 1 in c.shape, *formulas.kind)


def _detached(*tensors: Tensor | None) -> list[Tensor | None]:
    """One graph, whatever needs gradients and whatever these are views of."""
    return [t if t is None else t.detach() for t in tensors]
