"""The tail of a residual block as one differentiable function."""

from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from mmstepnet.precision import accumulation_dtype
from mmstepnet.torch_version import is_batched

from . import formulas
from .formulas import Batch, Learned, Running, TailSpec, widen


class Tail(Function):
    r"""``relu(x + gate(x, f) * f)`` with ``f = norm(c)``, StepNet's gate.

    f is never formed. Saved are x, c and the result, which their neighbours
    keep anyway, and vectors: X, M and the statistics that the norms took.
    """

    @staticmethod
    def forward(ctx: Any, passes: ModuleType, spec: TailSpec,
                norm_running: Running, gate_running: Running, x: Tensor,
                c: Tensor, *learned: Tensor | None) -> Tensor:
        """Take the tail, see :func:`.aten.forward`."""
        out, saved = passes.forward(spec, *same_format(c, x),
                                    Learned(*learned), norm_running,
                                    gate_running)
        ctx.spec, ctx.passes, ctx.kind = spec, passes, type(saved)
        # Statistics that this pass has updated are nobody's input.
        none = None, None
        running = (*(norm_running[:2] if spec.norm == 'running' else none),
                   *(gate_running[:2] if spec.gate == 'running' else none))
        ctx.save_for_backward(x, c, out if spec.relu else None, *running,
                              *learned, *saved)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Pass the gradient on, see :func:`.aten.backward`."""
        x, c, out, *rest = ctx.saved_tensors
        norm, gate = Running(*rest[:2]), Running(*rest[2:4])
        learned, saved = Learned(*rest[4:11]), ctx.kind(*rest[11:])
        needed = ctx.needs_input_grad[4:]
        # Derivatives of second order, and several gradients at once.
        if torch.is_grad_enabled() or is_batched(grad):
            found = _differentiable_backward(ctx.spec, x, c, learned, norm,
                                             gate, grad, needed)
        else:
            d_x, d_c, d_learned = ctx.passes.backward(
                ctx.spec, *same_format(c, grad, out), learned, gate, saved,
                *needed[:2])
            found = d_x, d_c, *(
                d if d is None or d.dtype == parameter.dtype
                else d.to(parameter.dtype)
                for d, parameter in zip(d_learned, learned))
        return (None, ) * 4 + tuple(
            d if wanted else None for d, wanted in zip(found, needed))


def same_format(c: Tensor, *others: Tensor | None) -> tuple[Tensor, ...]:
    """Maps and the branch's c, last or third, in one dense format: c's."""
    last = (not c.is_contiguous()
            and c.is_contiguous(memory_format=torch.channels_last))
    memory_format = torch.channels_last if last else torch.contiguous_format
    return tuple(t if t is None else
                 t.contiguous(memory_format=memory_format)
                 for t in (*others, c))


def _differentiable_backward(
        spec: TailSpec, x: Tensor, c: Tensor, learned: Learned,
        norm: Running, gate: Running, grad: Tensor,
        needed: tuple[bool, ...]) -> list[Tensor | None]:
    """Gradients that have gradients: those of the tail's definition.

    It is evaluated once more from x, c and the parameters. Nobody's running
    statistics are updated.
    """
    # Views, for c may come from x, whose own derivative is wanted here.
    with torch.enable_grad():
        inputs = [t if t is None else t.view_as(t) for t in (x, c, *learned)]
        out = evaluate(spec, *inputs[:2], Learned(*inputs[2:]), norm, gate)
    wanted = [t for t, n in zip(inputs, needed) if n]
    grads = iter(torch.autograd.grad(
        out, wanted, grad, create_graph=torch.is_grad_enabled(),
        allow_unused=True))
    return [next(grads) if n else None for n in needed]


def evaluate(spec: TailSpec, x: Tensor, c: Tensor, learned: Learned,
             norm: Running, gate: Running) -> Tensor:
    """The tail by operations that PyTorch differentiates.

    Args:
        spec (TailSpec): What it does.
        x (Tensor): State, (N, C, H, W).
        c (Tensor): Output of the branch's convolution.
        learned (Learned): Parameters.
        norm (Running): What a block's norm takes that takes these.
        gate (Running): What a gate's norm takes that takes these.
    """
    wide = accumulation_dtype(c.dtype)
    x_, c_ = x.to(wide), c.to(wide)
    c_mean, batch = c_.mean((2, 3)), None
    if spec.norm == 'batch':
        var, mean = torch.var_mean(c_, (0, 2, 3), correction=0)
        batch = Batch(mean, var, c_mean - mean, 0)
    scale, shift, saved = formulas.forward(
        spec._replace(norm_momentum=None, gate_momentum=None),
        Learned(*widen(learned, wide)), norm, gate, x_.mean((2, 3)), c_mean,
        batch)
    if saved.mean is not None:
        c_ = c_ - saved.mean[:, None, None]
    out = x_ + c_ * scale[..., None, None]
    if shift is not None:
        out = out + shift[..., None, None]
    return (out.relu() if spec.relu else out).to(c.dtype)
