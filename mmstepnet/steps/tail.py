"""The tail of a residual block in as few passes over memory as a plain one."""

from collections.abc import Sequence

import torch
import torch.nn as nn
from torch import Tensor
from torch.autograd import Function
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call

from mmstepnet.attentions import ChannelGate
from mmstepnet.precision import accumulation_dtype

from .kernels import backend
from .vectors import Formulas


def fused_residual_step(x: Tensor, branch: Tensor, norm: nn.Module | None,
                        gate: ChannelGate, relu: bool) -> Tensor:
    r"""Take the step ``x + gate(x, f) * f`` with ``f = norm(branch)``.

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
    tail = Formulas(norm, gate, relu, accumulation_dtype(branch.dtype))
    if torch.is_grad_enabled():
        return _Tail.apply(tail, x, branch, *tail.parameters)[0]
    pooled = tail.pool(x, branch)
    coefficients = tail.vectors(pooled)
    tail.commit(branch)
    # The hosts, too, add into what comes out of the last layer.
    return backend(branch).step(
        x, branch, *_wide(coefficients), relu, in_place=norm is None)


def _format(maps: Tensor) -> torch.memory_format:
    last = (not maps.is_contiguous()
            and maps.is_contiguous(memory_format=torch.channels_last))
    return torch.channels_last if last else torch.contiguous_format


class _Tail(Function):
    """The whole tail: pool, vectors, step; backward reduce, vectors, write.

    Returns the result and what :meth:`Formulas.pool` gave. Nobody else looks
    at that, but derivatives of second order come back through it. In them the
    gate is called once more, on copies of its buffers.
    """

    @staticmethod
    def forward(ctx, tail, x, c, *parameters):
        ctx.set_materialize_grads(False)
        ctx.tail = tail
        pooled = tail.pool(x, c)
        # A graph of vectors alone, for the backward. A checkpoint that took
        # its tensors away would run everything once more for them. A hook
        # that packed an operation's result as it is would tie it to itself,
        # and nothing of the step would ever be freed.
        with torch.enable_grad(), saved_tensors_hooks(
                torch.detach, _itself):
            leaves = [t if t is None else t.detach().requires_grad_()
                      for t in pooled]
            coefficients = tail.vectors(leaves)
        ctx.leaves, ctx.coefficients = leaves, coefficients
        tail.commit(c)
        coefficients = [t if t is None else t.detach() for t in coefficients]
        out = backend(c).step(x, c, *_wide(coefficients), tail.relu)
        ctx.save_for_backward(c, out if tail.relu else None, *pooled,
                              *parameters)
        return out, *pooled

    @staticmethod
    def backward(ctx, grad, *grad_pooled):
        c, out, *saved = ctx.saved_tensors
        pooled = saved[:3]
        needs_x, needs_c, *needs = ctx.needs_input_grad[1:]
        pixels = c.shape[2] * c.shape[3]
        twice = torch.is_grad_enabled()
        if twice:
            leaves, parameters = pooled, saved[3:]
            coefficients = ctx.tail.vectors(pooled, _Again(
                ctx.tail.gate, parameters))
        else:
            leaves, parameters = ctx.leaves, ctx.tail.parameters
            coefficients = ctx.coefficients
        found = [None] * (3 + len(parameters))
        if grad is not None:
            grad = grad.contiguous(memory_format=_format(c))
            found = _pull_back(grad, out, c, leaves, parameters, needs,
                               coefficients, twice)
        grad_x_mean, grad_mean, grad_var = (
            first if second is None else second if first is None else
            first + second for first, second in zip(found, grad_pooled))
        x_offset = None if grad_x_mean is None else grad_x_mean / pixels
        offset = None if grad_mean is None else grad_mean / pixels
        slope = None if grad_var is None else grad_var * (2 / pixels)
        _, scale, _ = coefficients
        if grad is None or twice:
            grads = _plain_gradients(grad, out, c, pooled[1], scale, slope,
                                     offset, x_offset)
        else:
            grads = backend(c).gradients(
                grad, out, c, pooled[1], scale.detach(), slope, offset,
                x_offset, needs_x, needs_c)
        return None, *grads, *found[3:]


def _itself(tensor: Tensor) -> Tensor:
    return tensor


class _Again:
    """A gate called a second time, which leaves no trace in its buffers."""

    def __init__(self, gate: nn.Module, parameters: Sequence[Tensor]):
        names = [name for name, _ in gate.named_parameters()]
        self.gate = gate
        self.tensors = {
            **dict(zip(names, parameters[len(parameters) - len(names):])),
            **{name: t.clone() for name, t in gate.named_buffers()}
        }

    def __call__(self, *pooled: Tensor) -> Tensor:
        return functional_call(self.gate, self.tensors, pooled)


def _pull_back(grad: Tensor, out: Tensor | None, c: Tensor,
               leaves: Sequence[Tensor | None], parameters: Sequence[Tensor],
               needs: Sequence[bool],
               coefficients: Sequence[Tensor | None],
               twice: bool) -> list[Tensor | None]:
    """Gradients of the pooled statistics and of the parameters.

    Args:
        grad (Tensor): Gradient of the step's result, (N, C, H, W).
        out (Tensor, optional): The result, if it was rectified.
        c (Tensor): Branch, (N, C, H, W).
        leaves (Sequence): Pooled statistics, see :meth:`Formulas.pool`.
        parameters (Sequence): Parameters of norm and gate.
        needs (Sequence): Which of them need gradients.
        coefficients (Sequence): See :meth:`Formulas.vectors`.
        twice (bool): Whether they will be differentiated again.

    Returns:
        list: One for each of ``leaves`` and ``parameters``.
    """
    centre, scale, shift = coefficients
    if twice:
        masked = (grad if out is None else grad * (out > 0)).to(scale.dtype)
        deviation = c if centre is None else c - _as_map(centre[None])
        sums = masked.sum((2, 3))
        products = (masked * deviation).sum((2, 3))
    else:
        wide, *_ = _wide([t if t is None else t.detach()
                          for t in coefficients])
        sums, products = backend(c).reduce(grad, out, c, wide)
    results, grads = [scale], [products]
    if shift is not None:
        results.append(shift)
        grads.append(sums)
    if centre is not None and centre.requires_grad:
        results.append(centre)
        scale = scale if twice else scale.detach()
        grads.append((sums * scale).sum(0).neg())
    every = [*leaves, *parameters]
    wanted = [k for k, t in enumerate(every) if t is not None
              and t.requires_grad and (k < 3 or needs[k - 3])]
    found = [None] * len(every)
    for k, t in zip(wanted, torch.autograd.grad(
            results, [every[k] for k in wanted], grads, retain_graph=True,
            create_graph=twice, allow_unused=True)):
        found[k] = t
    return found


def _plain_gradients(grad: Tensor | None, out: Tensor | None, c: Tensor,
                     centre: Tensor | None, scale: Tensor,
                     slope: Tensor | None, offset: Tensor | None,
                     x_offset: Tensor | None) -> list[Tensor | None]:
    """As :func:`aten.gradients`, in operations that are differentiable."""
    grad_x = grad_c = None
    if grad is not None:
        masked = grad if out is None else grad * (out > 0)
        grad_x = masked
        grad_c = (masked.to(scale.dtype) * _as_map(scale)).to(c.dtype)
    if x_offset is not None:
        grad_x = _add(grad_x, _as_map(x_offset), c)
    if offset is not None:
        grad_c = _add(grad_c, _as_map(offset), c)
    if slope is not None:
        grad_c = _add(grad_c, (c - _as_map(centre)) * _as_map(slope), c)
    return [grad_x, grad_c]


def _add(total: Tensor | None, term: Tensor, like: Tensor) -> Tensor:
    term = term.to(like.dtype).expand_as(like)
    return term if total is None else total + term


def _as_map(t: Tensor) -> Tensor:
    return t[..., None, None]


def _wide(coefficients: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
    """Centre, scale and shift, (N, C) each."""
    centre, scale, shift = coefficients
    return (None if centre is None else centre.expand_as(scale)), scale, shift
