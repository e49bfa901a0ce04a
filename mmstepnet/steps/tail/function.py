"""The tail of a residual block as one differentiable function."""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from mmstepnet.precision import accumulation_dtype
from mmstepnet.torch_version import is_batched

from .formulas import Parameters, TailSpec


class Tail(Function):
    r"""``relu(x + gate(x, f) * f)`` with ``f = norm(c)``, StepNet's gate.

    f is never formed. Saved are x, c and the result, which their neighbours
    keep anyway, and vectors.
    """

    @staticmethod
    def forward(ctx: Any, passes: ModuleType, spec: TailSpec, x: Tensor,
                c: Tensor, *learned: Tensor) -> Tensor:
        """Take the tail, see :func:`.aten.forward`."""
        out, saved = passes.forward(spec, *same_format(c, x),
                                    Parameters(*learned))
        ctx.spec, ctx.passes = spec, passes
        ctx.save_for_backward(x, c, out if spec.relu else None,
                              *spec.running, *learned, *saved)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Pass the gradient on, see :func:`.aten.backward`."""
        x, c, out, *rest = ctx.saved_tensors
        running, learned, saved = rest[:4], rest[4:11], rest[11:]
        needed = ctx.needs_input_grad[2:]
        # Derivatives of second order, and several gradients at once.
        if torch.is_grad_enabled() or is_batched(grad):
            # Views, for c may come from x, whose derivative is wanted here.
            with torch.enable_grad():
                inputs = [t.view_as(t) for t in (x, c, *learned)]
                *_, again = evaluate(ctx.spec, running, *inputs)
            found = iter(torch.autograd.grad(
                again, [t for t, n in zip(inputs, needed) if n], grad,
                create_graph=torch.is_grad_enabled(), allow_unused=True))
            return None, None, *(next(found) if n else None for n in needed)
        d_x, d_c, d_learned = ctx.passes.backward(
            ctx.spec, *same_format(c, grad, out), Parameters(*learned), saved)
        return None, None, *(
            None if not n else d if d.dtype == t.dtype else d.to(t.dtype)
            for d, t, n in zip((d_x, d_c, *d_learned), (x, c, *learned),
                               needed))


def same_format(c: Tensor, *others: Tensor | None) -> tuple[Any, ...]:
    """Maps, and the branch's c behind them, in one dense format: c's."""
    last = (not c.is_contiguous()
            and c.is_contiguous(memory_format=torch.channels_last))
    memory_format = torch.channels_last if last else torch.contiguous_format
    return tuple(t if t is None else
                 t.contiguous(memory_format=memory_format)
                 for t in (*others, c))


def evaluate(spec: TailSpec, running: Sequence[Tensor | None], x: Tensor,
             c: Tensor, *learned: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The tail by operations whose gradients have gradients.

    Args:
        spec (TailSpec): What it does.
        running (Sequence): Mean and variance of the block's norm and of the
            gate's, None for those of the batch. None are updated.
        x (Tensor): State, (N, C, H, W).
        c (Tensor): Output of the branch's convolution.
        *learned (Tensor): Parameters.

    Returns:
        tuple: f, (N, C, H, W), and Δt, (N, C, 1, 1), in float32 or better,
        and the result.
    """
    wide = accumulation_dtype(c.dtype)
    own = Parameters(*(t.to(wide) for t in learned))
    mean, var, mean_z, var_z = (t if t is None else t.to(wide)
                                for t in running)
    f = F.batch_norm(c.to(wide), mean, var, own.weight, own.bias,
                     spec.norm.batch, 0., spec.norm.eps)
    x_mean = x.mean((2, 3), dtype=wide)
    pair = torch.stack((x_mean, x_mean + f.mean((2, 3))), 2)
    y = F.batch_norm((pair * own.pair).sum(2), mean_z, var_z, own.gate_weight,
                     own.gate_bias, spec.gate.batch, 0., spec.gate.eps)
    step = spec.k * torch.sigmoid(y * own.ie_weight + own.ie_bias)
    step = step[..., None, None]
    out = x + f * step
    return f, step, (out.relu() if spec.relu else out).to(c.dtype)
