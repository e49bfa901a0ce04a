"""The residual step, where every feature trajectory passes."""

from collections.abc import Callable
from typing import Any

import torch.nn as nn
from torch import Tensor

from mmstepnet.attentions import Plain, choose_step
from mmstepnet.tracing.observed import ObservedStep

from .tail import ByHand, ByImage, read_tail, take_tail


class ResidualStep(ObservedStep):
    r"""One forward-Euler step of a residual block.

    .. math::
        x_{t+1} = x_t + f(x_t) \otimes \Delta t, \qquad
        \Delta t = \mathrm{attention}(x_t, f(x_t))

    A plain ResNet has :math:`\Delta t = 1`; a channel attention is a rule
    that chooses it (Huang et al., ICCV 2023, Eq. 7, 8 and 12). Each block
    of this package ends in this module, so stiffness is measured here too.

    Where :func:`~.tail.read_tail` knows all its parts, the step is fused
    with the norm. What the parts and the maps are decides that, so a
    checkpoint takes the same path when it runs the step again. Running
    statistics are updated in each run, hence twice, as PyTorch's BN does.

    Args:
        attention (nn.Module, optional): A :class:`ChannelGate`, or what is
            called as ``attention(x, f)`` and returns a step that broadcasts
            to ``f``. None, short for :class:`Plain`, is
            :math:`\Delta t = 1`. Defaults to None.
        activation (nn.Module, optional): Applied to the sum. None in
            pre-activation blocks. Defaults to None.
        drop_path (nn.Module, optional): Stochastic depth, applied to
            :math:`f \otimes \Delta t`. Defaults to None.
    """

    def __init__(
        self,
        attention: nn.Module | None = None,
        activation: nn.Module | None = None,
        drop_path: nn.Module | None = None,
    ):
        super().__init__()
        self.attention = attention
        self.activation = activation
        self.drop_path = drop_path

    def forward(
        self, identity: Tensor, branch: Tensor, norm: nn.Module | None = None
    ) -> Tensor:
        """Take the step.

        Args:
            identity (Tensor): State x_t, (N, C, H, W).
            branch (Tensor): Output of the branch's last convolution,
                (N, C, H, W).
            norm (nn.Module, optional): The block's last norm, with
                f = norm(branch). None in pre-activation, where f = branch.

        Returns:
            Tensor: State x_{t+1} after the activation, (N, C, H, W).
        """
        behind = self.activation, self.drop_path
        tail = read_tail(self, identity, branch, norm, *behind)
        if tail is None and norm is not None:
            branch = norm(branch)
        return self.take(identity, branch, tail, *behind)

    def take(
        self,
        identity: Tensor,
        branch: Tensor,
        tail: ByHand | ByImage | None,
        activation: Any,
        drop_path: Any,
    ) -> Tensor:
        """Take the step, with the norm or behind it.

        Args:
            identity (Tensor): State x_t, (N, C, H, W).
            branch (Tensor): What the norm is given, or f where there is no
                ``tail``.
            tail (ByHand | ByImage, optional): What :func:`~.tail.read_tail`
                has found.
            activation (Callable, optional): Applied to the sum.
            drop_path (Callable, optional): Applied to f ⊗ Δt.

        Returns:
            Tensor: State x_{t+1} after the activation, (N, C, H, W).
        """
        if tail is not None:
            return take_tail(
                tail, self, identity, branch, activation, drop_path
            )
        step = self.choose(identity, branch)
        residual = branch if step is None else branch * step
        residual = residual if drop_path is None else drop_path(residual)
        out = identity + residual
        out = out if activation is None else activation(out)
        self.report(identity, branch, step, out)
        return out

    def choose(self, x: Tensor, f: Tensor) -> Tensor | None:
        """Choose the step by the attention, which may update statistics.

        Args:
            x (Tensor): State x_t, (N, C, H, W).
            f (Tensor): Residual f(x_t), (N, C, H, W).

        Returns:
            Tensor: Step, broadcastable to f, in its dtype; None for 1.
        """
        if self.attention is None or isinstance(self.attention, Plain):
            return None
        return choose_step(self.attention, x, f)

    def init_weights(self) -> None:
        """Bring the attention to its start: mmengine's recursion asks it."""
        attention: Any = self.attention
        if hasattr(attention, 'init_weights'):
            attention.init_weights()

    def _apply(self, fn: Callable, recurse: bool = True) -> 'ResidualStep':
        """Bring a gate to its start where ``to_empty`` gives it memory."""
        was_meta = self._is_meta()
        super()._apply(fn, recurse)
        if was_meta and not self._is_meta():
            for module in self.modules():
                reset: Any = getattr(module, 'reset_parameters', None)
                if reset is not None:
                    reset()
        return self

    def _is_meta(self) -> bool:
        return any(t.is_meta for t in (*self.parameters(), *self.buffers()))
