"""What lies between the passes over the maps of a residual step."""

from collections.abc import Callable, Sequence

import torch
import torch.nn as nn
from torch import Tensor

from mmstepnet.attentions import ChannelGate, pooling

from .kernels import backend


class Formulas:
    """The work on (N, C) vectors, from pooled statistics to coefficients.

    Args:
        norm (nn.Module, optional): See
            :func:`~mmstepnet.steps.tail.fused_residual_step`.
        gate (ChannelGate): See there.
        relu (bool): See there.
        dtype (torch.dtype): Of the vectors.
    """

    def __init__(self, norm: nn.Module | None, gate: ChannelGate,
                 relu: bool, dtype: torch.dtype):
        self.norm = norm
        self.gate = gate
        self.relu = relu
        self.dtype = dtype
        self.parameters = [p for module in (norm, gate) if module is not None
                           for p in module.parameters()]
        # Whether the batch's statistics are used. A frozen BN has no mode.
        self.normalises = type(norm) is nn.BatchNorm2d and (
            norm.training or norm.running_mean is None)
        self.batch_statistics = None

    def pool(self, x: Tensor, c: Tensor) -> tuple[Tensor | None, ...]:
        """Mean of x, mean and population variance of c, as needed."""
        ops, wanted = backend(c), self.gate.pooled
        c_mean = c_var = None
        if self.normalises or 'f_std' in wanted:
            c_mean, c_var = ops.moments(c)
        elif 'f_mean' in wanted:
            c_mean = ops.mean(c)
        return ops.mean(x) if 'x_mean' in wanted else None, c_mean, c_var

    def vectors(self, pooled: Sequence[Tensor | None],
                gate: Callable | None = None) -> tuple[Tensor | None, ...]:
        """Coefficients of ``x + (c - centre) * scale + shift``.

        Args:
            pooled (Sequence): What :meth:`pool` gave.
            gate (Callable, optional): To call in the gate's place.

        Returns:
            tuple: Centre, (C,), scale and shift, (N, C). Centre and shift are
            None where f is c.
        """
        x_mean, c_mean, c_var = pooled
        wanted, norm = self.gate.pooled, self.norm
        known = {'x_mean': x_mean, 'f_mean': c_mean}
        f_var = c_var
        if norm is not None:
            mean, var = self._statistics(c_mean, c_var)
            alpha = norm.weight.to(self.dtype) * (var + norm.eps).rsqrt()
            beta = norm.bias.to(self.dtype)
            if c_mean is not None:
                known['f_mean'] = torch.addcmul(beta, c_mean - mean, alpha)
            if 'f_std' in wanted:
                f_var = c_var * alpha.square()
        if 'f_std' in wanted:
            known['f_std'] = (f_var + pooling.EPS).sqrt()
        # Not rounded to half precision, as the reference path's step is.
        step = (gate or self.gate)(*(known[name] for name in wanted))
        step = step.to(self.dtype).expand_as(known[wanted[0]])
        if norm is None:
            return None, step, None
        return mean, step * alpha, step * beta

    def _statistics(self, c_mean: Tensor | None,
                    c_var: Tensor | None) -> tuple[Tensor, Tensor]:
        """BN's mean and variance, (C,)."""
        if not self.normalises:
            norm = self.norm
            return tuple(t.to(self.dtype)
                         for t in (norm.running_mean, norm.running_var))
        mean = c_mean.mean(0)
        deviation = c_mean - mean
        var = torch.addcmul(c_var, deviation, deviation).mean(0)
        self.batch_statistics = mean.detach(), var.detach()
        return mean, var

    @torch.no_grad()
    def commit(self, c: Tensor) -> None:
        """Update BN's running statistics, once, in the forward pass."""
        norm = self.norm
        if not (self.normalises and norm.training
                and norm.track_running_stats):
            return
        mean, var = self.batch_statistics
        momentum = norm.momentum
        if norm.num_batches_tracked is not None:
            norm.num_batches_tracked.add_(1)
            if momentum is None:
                momentum = 1 / norm.num_batches_tracked.to(mean.dtype)
        count = c.numel() // c.shape[1]
        unbiased = var * (count / (count - 1))
        for running, batch in ((norm.running_mean, mean),
                               (norm.running_var, unbiased)):
            running.lerp_(batch.to(running.dtype), momentum)
