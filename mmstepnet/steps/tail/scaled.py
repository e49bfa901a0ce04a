r"""A step at a branch's end as one differentiable function, by hand.

The block adds by itself, so there is neither a norm nor a sum here. With X
and F the means of x and f over the S places of an image and Δt as
:mod:`.parts` has it,

.. math::
    \mathrm{out} = f\,\Delta t, \qquad
    \mathrm{d}\Delta t = \Sigma\, g f, \qquad
    \mathrm{d}f = g\,\Delta t + \mathrm{d}F / S, \qquad
    \mathrm{d}x = \mathrm{d}X / S

with g the gradient of the result. dx is one number an image and channel: the
engine is handed a vector that is expanded, and never a map.
"""

from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from mmstepnet.precision import accumulation_dtype
from mmstepnet.torch_version import is_batched

from .parts import GateWeights, ScaledSpec, choose_by_formula, find_layout


class Scaled(Function):
    """``gate(x, f) * f`` with StepNet's gate.

    Saved are f and vectors. x is not: under autocast nobody else may keep it,
    and blocks add to it in place. Its means are a second result, so that
    derivatives of second order find their way from them to x.
    """

    @staticmethod
    def forward(
        ctx: Any,
        passes: ModuleType,
        spec: ScaledSpec,
        x: Tensor,
        f: Tensor,
        *learned: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Scale a branch, see :func:`.scaled_aten.forward`.

        Returns:
            tuple: The result; and the means of x, in the first N rows.
        """
        out, saved = passes.forward(spec, x, f, learned)
        ctx.spec = spec
        ctx.passes = passes
        ctx.set_materialize_grads(False)
        # Running statistics are saved so that autograd notices a change.
        ctx.save_for_backward(f, *learned, *spec.gate.used, *saved)
        return out, saved[0]

    @staticmethod
    def backward(
        ctx: Any, grad: Any, d_means: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        """Pass the gradient on, see :func:`.scaled_aten.backward`."""
        spec = ctx.spec
        kept = ctx.saved_tensors  # once, for a checkpoint
        f, *learned = kept[:6]
        saved = kept[8:]
        if grad is None:  # of second order: through the means alone
            grad = torch.zeros_like(f)
        if torch.is_grad_enabled() or d_means is not None or is_batched(grad):
            d_x, d_f, *d_learned = differentiate(
                spec, grad, saved[0], f, learned
            )
            if d_means is not None:
                d_x = d_x + d_means[: spec.layout.images]
            d_x = (d_x / spec.layout.places).to(spec.x_dtype)
        else:
            axes = spec.layout.batch, spec.layout.channel
            layout = find_layout(grad.shape, grad.stride(), *axes)
            if layout is None:  # as of a sum, one number for all
                grad = torch.empty_like(f).copy_(grad)
                layout = spec.layout
            d_x, d_f, d_learned = ctx.passes.backward(
                spec, layout, grad, f, learned, saved
            )
        d_x = d_x.reshape(spec.layout.spread).expand(f.shape)
        return None, None, d_x, d_f, *d_learned


def differentiate(
    spec: ScaledSpec,
    grad: Tensor,
    means: Tensor,
    f: Tensor,
    learned: list[Tensor],
) -> tuple[Tensor, ...]:
    """Gradients of X, f and of what is learned, by :func:`evaluate`."""
    derivatives: Any = torch.func.vjp(
        partial(evaluate, spec),
        means[: spec.layout.images],
        f,
        *learned,
        has_aux=True,
    )[1]
    return derivatives(grad)


def evaluate(
    spec: ScaledSpec, x_mean: Tensor, f: Tensor, *learned: Tensor
) -> tuple[Tensor, Tensor]:
    """The scaled branch by operations whose gradients have gradients.

    Args:
        spec (ScaledSpec): What is done. No running statistics are updated.
        x_mean (Tensor): X, (N, C), in float32 or better.
        f (Tensor): The branch, with the axes of its place.
        *learned (Tensor): What is learned, as :class:`GateWeights`.

    Returns:
        tuple: The result; and Δt, which broadcasts to it, in float32 or
        better.
    """
    wide = accumulation_dtype(f.dtype)
    maps = f.to(wide)
    step = choose_by_formula(
        spec.gate,
        spec.k,
        GateWeights(*(t.to(wide) for t in learned)),
        x_mean,
        spec.layout.mean(maps),
    ).reshape(spec.layout.spread)
    return (maps * step).to(f.dtype), step
