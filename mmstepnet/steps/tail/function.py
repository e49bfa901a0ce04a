r"""The tail of a residual block as one differentiable function, by hand.

With c the output of the branch's convolution and x the state, for each image
n and channel, the passes give the means X of x and M of c, and v, the mean of
(c - M)^2 over the pixels. Then, with N images and S pixels,

.. math::
    \mu &= \mathrm{mean}_n M, \quad
    \sigma^2 = \mathrm{mean}_n (v + (M - \mu)^2), \quad
    r = (\sigma^2 + \epsilon)^{-1/2}, \quad a = \gamma r \\
    F &= (M - \mu) a + \beta \quad (= \mathrm{GAP}(f)) \\
    x_{t+1} &= \mathrm{relu}(x + (c - \mu)\,\mathrm{scale} +
    \mathrm{shift}), \quad \mathrm{scale} = \Delta t\, a, \quad
    \mathrm{shift} = \Delta t\, \beta

with Δt as :mod:`.parts` has it, of X and F. Each of both norms may take its
running statistics in place of the batch's. Backward, with g the gradient
where the result is positive, the passes give G = Σ g and P = Σ g (c - μ) over
the pixels, hence Σ g f = P a + G β, from which all other derivatives follow.
They end in

.. math::
    \mathrm{d}x = g + \mathrm{d}X / S, \qquad
    \mathrm{d}c = g\,\mathrm{scale} + (c - \mu)\,\mathrm{slope} +
    \mathrm{offset}
"""

from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from mmstepnet.precision import accumulation_dtype
from mmstepnet.torch_version import is_batched

from .parts import TailSpec, TailWeights, choose_by_formula


class Tail(Function):
    r"""``relu(x + gate(x, f) * f)`` with ``f = norm(c)``, StepNet's gate.

    f is never formed. Saved are x, c and the result, which their neighbours
    keep anyway, and vectors. What is learned comes as :class:`TailWeights`.
    """

    @staticmethod
    def forward(
        ctx: Any,
        passes: ModuleType,
        spec: TailSpec,
        x: Tensor,
        c: Tensor,
        *learned: Tensor,
    ) -> Tensor:
        """Take the tail, see :func:`.aten.forward`."""
        out, saved = passes.forward(spec, *same_format(c, x), learned)
        ctx.spec = spec
        ctx.passes = passes
        # Running statistics are saved so that autograd notices a change.
        ctx.save_for_backward(
            x,
            c,
            *learned,
            out if spec.relu else None,
            *spec.norm.used,
            *spec.gate.used,
            *saved,
        )
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Pass the gradient on, see :func:`.aten.backward`."""
        kept = ctx.saved_tensors  # once, for a checkpoint
        x, c, *learned = kept[:9]
        out = kept[9]
        saved = kept[14:]
        # Derivatives of second order, and several gradients at once.
        if torch.is_grad_enabled() or is_batched(grad):
            _, derivatives, *_ = torch.func.vjp(
                partial(evaluate, ctx.spec), x, c, *learned, has_aux=True
            )
            return None, None, *derivatives(grad)
        d_x, d_c, d_learned = ctx.passes.backward(
            ctx.spec, *same_format(c, grad, out), learned, saved
        )
        return None, None, d_x, d_c, *d_learned


def same_format(c: Tensor, *others: Tensor | None) -> tuple[Any, ...]:
    """Maps, and the branch's c behind them, in one dense format: c's."""
    dense = next(
        (
            f
            for f in (torch.contiguous_format, torch.channels_last)
            if c.is_contiguous(memory_format=f)
        ),
        torch.contiguous_format,
    )
    return tuple(
        t if t is None else t.contiguous(memory_format=dense)
        for t in (*others, c)
    )


def evaluate(
    spec: TailSpec, x: Tensor, c: Tensor, *learned: Tensor
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """The tail by operations whose gradients have gradients.

    Args:
        spec (TailSpec): What it does. No running statistics are updated.
        x (Tensor): State, (N, C, H, W).
        c (Tensor): Output of the branch's convolution.
        *learned (Tensor): What is learned, as :class:`TailWeights`.

    Returns:
        tuple: The result; and f, (N, C, H, W), and Δt, (N, C, 1, 1), both in
        float32 or better.
    """
    wide = accumulation_dtype(c.dtype)
    weights = TailWeights(*(t.to(wide) for t in learned))
    f = spec.norm.normalise(c.to(wide), weights.norm_weight, weights.norm_bias)
    step = choose_by_formula(
        spec.gate,
        spec.k,
        weights.gate,
        x.mean((2, 3), dtype=wide),
        f.mean((2, 3)),
    )[..., None, None]
    out = x + f * step
    return (out.relu() if spec.relu else out).to(c.dtype), (f, step)
