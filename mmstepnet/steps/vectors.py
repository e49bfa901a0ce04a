"""What lies between the passes over the maps of a residual step."""

from collections.abc import Sequence

import torch
import torch.nn as nn
from torch import Tensor
from torch.func import functional_call, vjp

from mmstepnet.attentions import ChannelGate, pooling
from mmstepnet.precision import accumulation_dtype

Vectors = tuple[Tensor | None, ...]


class Formulas:
    """What a step does, beside the tensors that it does it with.

    Args:
        norm (nn.Module, optional): See
            :func:`~mmstepnet.steps.tail.fused_residual_step`.
        gate (ChannelGate): See there.
        relu (bool): See there.
    """

    def __init__(self, norm: nn.Module | None, gate: ChannelGate,
                 relu: bool):
        self.gate = _without_tensors(gate)
        self.pooled = gate.pooled
        self.relu = relu
        self.has_norm = norm is not None
        # Whether the batch's statistics are used. A frozen BN has no mode.
        self.normalises = type(norm) is nn.BatchNorm2d and (
            norm.training or norm.running_mean is None)
        self.updates = (self.normalises and norm.training
                        and norm.track_running_stats)
        self.eps = norm.eps if self.has_norm else None
        self.momentum = norm.momentum if self.updates else None
        self.names, self.moving_names, self.learned = (), (), ()

    @property
    def kind(self) -> tuple[bool, ...]:
        """What steps of a gate differ by, as to their graphs."""
        return self.has_norm, self.normalises, self.updates, self.relu

    def tensors(self, norm: nn.Module | None,
                gate: ChannelGate) -> tuple[list, list]:
        """Find what the formulas are given, as it is now.

        Returns:
            tuple: Those whose values count: the norm's weight, bias, mean and
            variance (None for the last two where they are the batch's), then
            the gate's, named by ``names``; ``learned`` are the places of
            those that have gradients. And those that a forward pass
            updates: the norm's mean, variance and count, then the gate's,
            named by ``moving_names``.
        """
        values, moving = [], []
        if self.has_norm:
            running = [norm.running_mean, norm.running_var]
            values += [norm.weight, norm.bias,
                       *([None, None] if self.normalises else running)]
            if self.updates:
                moving += [*running, norm.num_batches_tracked]
        learned = list(range(min(len(values), 2)))
        names, moving_names = [], []
        for prefix, module in parts(gate):
            for name, t in module._parameters.items():
                if t is not None:
                    learned.append(len(values))
                    values.append(t)
                    names.append(prefix + name)
            for name, t in module._buffers.items():
                if t is not None:
                    # A BN in training gives its buffers away, unread.
                    (moving if module.training else values).append(t)
                    (moving_names if module.training else names).append(
                        prefix + name)
        self.names, self.moving_names = tuple(names), tuple(moving_names)
        self.learned = tuple(learned)
        return values, moving


def parts(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """A module and those in it, each behind the prefix of its tensors.

    ``named_modules`` takes longer than a small step does.
    """
    found = [('', module)]
    for prefix, part in found:
        found += [(f'{prefix}{name}.', child)
                  for name, child in part._modules.items()
                  if child is not None]
    return found


_NOTHING = torch.empty(0, device='cpu')


def _without_tensors(module: nn.Module) -> nn.Module:
    """A module whose tensors are still to be given.

    Those of a module that a compiler reads have fixed sizes, and each number
    of channels would get a graph of its own.
    """
    copy = object.__new__(type(module))
    copy.__dict__.update(
        module.__dict__,
        _parameters={name: t if t is None else _NOTHING
                     for name, t in module._parameters.items()},
        _buffers={name: t if t is None else _NOTHING
                  for name, t in module._buffers.items()},
        _modules={name: m if m is None else _without_tensors(m)
                  for name, m in module._modules.items()})
    return copy


def pool(formulas: Formulas, passes, x: Tensor, c: Tensor) -> Vectors:
    """Sums of x, means and squares or sums of c, as needed, (S, N, C)."""
    x_sums = means = squares = None
    if 'x_mean' in formulas.pooled:
        x_sums = passes.total(x)
    if formulas.normalises or 'f_std' in formulas.pooled:
        means, squares = passes.moments(c)
    elif 'f_mean' in formulas.pooled:
        means = passes.total(c)
    return x_sums, means, squares


def join(sums: Vectors, pixels: int, span: int) -> Vectors:
    """Join the spans that :func:`pool` left.

    Args:
        sums (tuple): What it gave.
        pixels (int): Pixels of a map.
        span (int): Pixels of each span but the last.

    Returns:
        tuple: Mean of x, mean and population variance of c, (N, C) each.
    """
    x_sums, means, squares = sums
    x_mean = None if x_sums is None else x_sums.sum(0) / pixels
    if means is None:
        return x_mean, None, None
    if squares is None:
        return x_mean, means.sum(0) / pixels, None
    if len(means) == 1:
        return x_mean, means[0], squares[0] / pixels
    counts = (pixels - span * torch.arange(
        len(means), device=means.device)).clamp(max=span)[:, None, None]
    mean = (means * counts).sum(0) / pixels
    squares = squares + (means - mean).square() * counts
    return x_mean, mean, squares.sum(0) / pixels


def centre_of(formulas: Formulas, pooled: Vectors,
              values: Sequence[Tensor]) -> Tensor | None:
    """The mean that the norm takes away, (C,)."""
    if not formulas.has_norm:
        return None
    if formulas.normalises:
        return pooled[1].mean(0)
    return values[2].to(accumulation_dtype(values[2].dtype))


def coefficients(formulas: Formulas, pooled: Vectors,
                 values: Sequence[Tensor | None],
                 moving: Sequence[Tensor]) -> Vectors:
    """Coefficients of ``x + (c - centre) * scale + shift``.

    Args:
        formulas (Formulas): What the step does.
        pooled (tuple): What :func:`join` gave.
        values (Sequence[Tensor]): See :meth:`Formulas.tensors`.
        moving (Sequence[Tensor]): Those of the gate, which it updates.

    Returns:
        tuple: Centre, (C,), scale and shift, (N, C), and the batch's
        variance, (C,). Without a norm all but scale are None, the last
        without the batch's statistics.
    """
    x_mean, c_mean, f_var = pooled
    known = {'x_mean': x_mean, 'f_mean': c_mean}
    centre = centre_of(formulas, pooled, values)
    var = None
    if formulas.has_norm:
        weight, bias, _, running_var, *values = values
        wide = centre.dtype
        if formulas.normalises:
            var = (f_var + (c_mean - centre).square()).mean(0)
        used = running_var.to(wide) if var is None else var
        alpha = weight.to(wide) * (used + formulas.eps).rsqrt()
        beta = bias.to(wide)
        if c_mean is not None:
            known['f_mean'] = (c_mean - centre) * alpha + beta
        if 'f_std' in formulas.pooled:
            f_var = f_var * alpha.square()
    if 'f_std' in formulas.pooled:
        known['f_std'] = (f_var + pooling.EPS).sqrt()
    state = dict(zip((*formulas.names, *formulas.moving_names),
                     (*values, *moving)))
    given = tuple(known[name] for name in formulas.pooled)
    # Not rounded to half precision, as the reference path's step is.
    step = functional_call(formulas.gate, state, given, tie_weights=False)
    step = step.to(given[0].dtype).expand_as(given[0])
    if not formulas.has_norm:
        return None, step, None, None
    return centre, step * alpha, step * beta, var


def forward_vectors(
        formulas: Formulas, sums: Vectors, pixels: int, span: int,
        values: Sequence[Tensor | None],
        moving: Sequence[Tensor]) -> tuple[Vectors, Vectors]:
    """From sums to coefficients; running statistics are updated.

    Arguments are those of :func:`join` and :func:`coefficients`.

    Returns:
        tuple: What :func:`join` gives, and centre, scale and shift.
    """
    pooled = join(sums, pixels, span)
    centre, scale, shift, var = coefficients(
        formulas, pooled, values, _of_gate(formulas, moving))
    if formulas.updates:
        running_mean, running_var, count = moving[:3]
        momentum = formulas.momentum
        if count is not None:
            count.add_(1)
            if momentum is None:
                momentum = 1 / count.to(var.dtype)
        size = len(pooled[1]) * pixels
        for running, batch in ((running_mean, centre),
                               (running_var, var * (size / (size - 1)))):
            running.lerp_(batch.to(running.dtype), momentum)
    return pooled, (centre, scale, shift)


def backward_vectors(
        formulas: Formulas, sums: Tensor, products: Tensor, pixels: int,
        pooled: Vectors, grad_pooled: Vectors,
        values: Sequence[Tensor | None], moving: Sequence[Tensor]
) -> tuple[Vectors, list[Tensor | None]]:
    """From the first pass of the backward to the second.

    Args:
        formulas (Formulas): What the step does.
        sums (Tensor): Sums of the masked gradient, (S, N, C).
        products (Tensor): Of its product with ``c - centre``, (S, N, C).
        pixels (int): Pixels of a map.
        pooled (tuple): What :func:`join` gave.
        grad_pooled (tuple): Their gradients from elsewhere, or None.
        values (Sequence[Tensor]): See :meth:`Formulas.tensors`.
        moving (Sequence[Tensor]): See there.

    Returns:
        tuple: Scale, slope, offset and offset of x, for ``gradients``, and
        the gradients of ``values``.
    """
    sums, products = sums.sum(0), products.sum(0)
    given = [*pooled, *values]
    wanted = [k for k in (*range(3), *(3 + k for k in formulas.learned))
              if given[k] is not None]

    def function(*tensors):
        every = list(given)
        for k, t in zip(wanted, tensors):
            every[k] = t
        # Copies are updated: the forward pass has counted this batch.
        found = coefficients(formulas, every[:3], every[3:], [
            t.clone() for t in _of_gate(formulas, moving)])
        return tuple(t for t in found[:3] if t is not None)

    found, pull_back = vjp(function, *(given[k] for k in wanted))
    if formulas.has_norm:
        scale = found[1]
        grads = pull_back((-(sums * scale).sum(0), products, sums))
    else:
        scale, = found
        grads = pull_back((products, ))
    every = [None] * len(given)
    for k, t in zip(wanted, grads):
        every[k] = t
    x_offset, offset, slope = (
        t if t is None else (t if more is None else t + more) / pixels
        for t, more in zip(every, grad_pooled))
    if slope is not None:
        slope = 2 * slope
    return (scale, slope, offset, x_offset), every[3:]


def _of_gate(formulas: Formulas, moving: Sequence[Tensor]) -> list[Tensor]:
    return moving[len(moving) - len(formulas.moving_names):]
