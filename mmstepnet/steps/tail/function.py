r"""The tail of a residual block as one differentiable function, by hand.

With c the output of the branch's convolution and x the state, for each image
n and channel, the passes give the means X of x and M of c, and v, the mean of
(c - M)^2 over the pixels. Then, with N images and S pixels,

.. math::
    \mu &= \mathrm{mean}_n M, \quad
    \sigma^2 = \mathrm{mean}_n (v + (M - \mu)^2), \quad
    r = (\sigma^2 + \epsilon)^{-1/2}, \quad a = \gamma r \\
    F &= (M - \mu) a + \beta \quad (= \mathrm{GAP}(f)), \qquad
    z = w_0 X + w_1 (X + F) \\
    \hat z &= (z - m) \rho, \quad y = \hat z\, \gamma' + \beta', \quad
    \Delta t = k\, \sigma(W_{IE}\, y + b_{IE}) \\
    x_{t+1} &= \mathrm{relu}(x + (c - \mu)\,\mathrm{scale} +
    \mathrm{shift}), \quad \mathrm{scale} = \Delta t\, a, \quad
    \mathrm{shift} = \Delta t\, \beta

where m and ρ are mean and 1/deviation of z over the images. Each of both
norms may take its running statistics in place of the batch's. One that is
missing is one that changes nothing: of running statistics 0 and 1 and ε = 0.
Backward, with g the gradient where the result is positive, the
passes give G = Σ g and P = Σ g (c - μ) over the pixels, hence Σ g f = P a +
G β, from which all other derivatives follow. They end in

.. math::
    \mathrm{d}x = g + \mathrm{d}X / S, \qquad
    \mathrm{d}c = g\,\mathrm{scale} + (c - \mu)\,\mathrm{slope} +
    \mathrm{offset}

StepNet: ICCV 2023, §2.5 and Appendix F.
"""

from collections import namedtuple
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from mmstepnet.precision import accumulation_dtype
from mmstepnet.torch_version import is_batched


class Norm(NamedTuple):
    """How a BN normalises."""

    batch: bool
    """By the statistics of the batch; else by its running ones."""
    eps: float
    mean: Any = None
    """Running mean, a tensor (C,); None where it is not taken or updated."""
    var: Any = None
    count: Tensor | None = None
    """Of batches seen; None where no running statistics are updated."""
    momentum: float = 0.0

    @property
    def used(self) -> tuple[Tensor | None, Tensor | None]:
        """Mean and variance that are given; None for those of the batch."""
        return (None, None) if self.batch else (self.mean, self.var)

    def update(self, mean: Tensor, var: Tensor, count: int) -> None:
        """Move the running statistics towards those of so many values."""
        if self.count is not None:
            kind, part = self.mean.dtype, self.momentum / (count - 1)
            self.mean.lerp_(mean.to(kind), self.momentum)
            self.var.lerp_(var.to(kind), self.momentum).add_(var, alpha=part)
            self.count.add_(1)


TailSpec = namedtuple('TailSpec', 'norm gate k relu')
"""What a tail does, beside the tensors that may have gradients: the
:class:`Norm` of the block and of the gate, k, and whether it is rectified."""


class Tail(Function):
    r"""``relu(x + gate(x, f) * f)`` with ``f = norm(c)``, StepNet's gate.

    f is never formed. Saved are x, c and the result, which their neighbours
    keep anyway, and vectors. What is learned comes as γ, β, w (C, 2), γ', β',
    W_IE and b_IE, the others (C,).
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
        ctx.spec, ctx.passes = spec, passes
        # Running statistics are saved so that autograd notices a change.
        ctx.save_for_backward(
            *spec.norm.used,
            *spec.gate.used,
            x,
            c,
            *learned,
            out if spec.relu else None,
            *saved,
        )
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Pass the gradient on, see :func:`.aten.backward`."""
        kept = ctx.saved_tensors[4:]  # once, for a checkpoint
        inputs, out, saved = kept[:9], kept[9], kept[10:]
        # Derivatives of second order, and several gradients at once.
        if torch.is_grad_enabled() or is_batched(grad):
            _, derivatives, *_ = torch.func.vjp(
                partial(evaluate, ctx.spec), *inputs, has_aux=True
            )
            return None, None, *derivatives(grad)
        _, c, *learned = inputs
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
        *learned (Tensor): Parameters.

    Returns:
        tuple: The result; and f, (N, C, H, W), and Δt, (N, C, 1, 1), both in
        float32 or better.
    """
    wide = accumulation_dtype(c.dtype)
    weight, bias, pair, gate_weight, gate_bias, ie_weight, ie_bias = (
        t.to(wide) for t in learned
    )

    def normalise(values, norm, weight, bias):
        mean, var = (t if t is None else t.to(wide) for t in norm.used)
        return F.batch_norm(
            values, mean, var, weight, bias, norm.batch, 0.0, norm.eps
        )

    f = normalise(c.to(wide), spec.norm, weight, bias)
    x_mean = x.mean((2, 3), dtype=wide)
    states = torch.stack((x_mean, x_mean + f.mean((2, 3))), 2)
    y = normalise((states * pair).sum(2), spec.gate, gate_weight, gate_bias)
    step = spec.k * torch.sigmoid(y * ie_weight + ie_bias)[..., None, None]
    out = x + f * step
    return (out.relu() if spec.relu else out).to(c.dtype), (f, step)
