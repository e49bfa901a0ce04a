"""The residual step, where every feature trajectory passes."""

from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn as nn
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from mmstepnet.attentions import Plain, choose_step, of_kept
from mmstepnet.torch_version import is_backward, is_compiling

from .checkpoint import repeated, statistics_kept
from .tail import fused_step

Observer = Callable[['ResidualStep', Tensor, Tensor, Tensor | None, Tensor],
                    None]


class ResidualStep(nn.Module):
    r"""One forward-Euler step of a residual block.

    .. math::
        x_{t+1} = x_t + f(x_t) \otimes \Delta t, \qquad
        \Delta t = \mathrm{attention}(x_t, f(x_t))

    A plain ResNet has :math:`\Delta t = 1`; a channel attention is a rule
    that chooses it (Huang et al., ICCV 2023, Eq. 7, 8 and 12). Each block
    of this package ends in this module, so stiffness is measured here too.
    Where :func:`~.tail.fused_step` knows all its parts, the step is fused
    with the norm; the lines of the reference path say what it is.

    Autograd runs a step again for a checkpoint. That run updates no
    statistics, in either path. It takes the path of the step's last run with
    gradients, also where observers came or went in between: a checkpoint of
    PyTorch compares what both runs save.

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

    _was_fused: bool | None = None
    """Path of the last run that autograd might repeat."""

    def __init__(self,
                 attention: nn.Module | None = None,
                 activation: nn.Module | None = None,
                 drop_path: nn.Module | None = None):
        super().__init__()
        self.attention = attention
        self.activation = activation or nn.Identity()
        self.drop_path = drop_path or nn.Identity()
        self._observers = OrderedDict()
        self._was_fused = None

    def init_weights(self) -> None:
        """Bring the attention to its start: mmengine's recursion asks it."""
        attention: Any = self.attention
        if hasattr(attention, 'init_weights'):
            attention.init_weights()

    def forward(self,
                identity: Tensor,
                branch: Tensor,
                norm: nn.Module | None = None,
                post_activation: Callable[[Tensor], Tensor] | None = None,
                drop_path: Callable[[Tensor], Tensor] | None = None,
                keep: Tensor | None = None) -> Tensor:
        """Take the step.

        Args:
            identity (Tensor): State x_t, (N, C, H, W).
            branch (Tensor): Output of the branch's last convolution,
                (N, C, H, W).
            norm (nn.Module, optional): The block's last norm, with
                f = norm(branch). None in pre-activation, where f = branch.
            post_activation (Callable, optional): Activation that the block
                keeps under a key of its own, as a PReLU; applied behind
                :attr:`activation`. Defaults to None.
            drop_path (Callable, optional): Stochastic depth that the block
                applies itself, with what it has drawn in this run; applied
                behind :attr:`drop_path`. Defaults to None.
            keep (Tensor, optional): Places that the attention sees,
                (N, 1, H, W) in bool; the others are padding. None is all.
                Defaults to None.

        Returns:
            Tensor: State x_{t+1} after the activation, (N, C, H, W).
        """
        given = identity, branch, norm, post_activation, drop_path, keep
        if is_compiling():
            return self._reference(*given)
        again = is_backward()
        with self._as_before() if again else nullcontext():
            fits = drop_path is None and keep is None
            out = fused_step(self, identity, branch, norm) if fits else None
        if not again and torch.is_grad_enabled() and (
                self._was_fused is not (out is not None)):
            self._was_fused = out is not None
        if out is not None:
            return out if post_activation is None else post_activation(out)
        with (statistics_kept(norm, self.attention) if again
              else nullcontext()):
            return self._reference(*given)

    def _as_before(self) -> AbstractContextManager:
        """Take the last run's path where observers may have changed it."""
        if self._was_fused is False or self._was_fused and self._observers:
            return repeated(self._was_fused)
        return nullcontext()

    def _reference(self, identity: Tensor, branch: Tensor,
                   norm: nn.Module | None,
                   post_activation: Callable[[Tensor], Tensor] | None,
                   drop_path: Callable[[Tensor], Tensor] | None,
                   keep: Tensor | None) -> Tensor:
        f = branch if norm is None else norm(branch)
        if self.attention is None or isinstance(self.attention, Plain):
            step, residual = None, f
        else:
            step = choose_step(self.attention, identity, f) if (
                keep is None) else choose_step(
                    self.attention, of_kept(identity, keep),
                    of_kept(f, keep)).to(f.dtype)
            residual = f * step
        residual = self.drop_path(residual)
        if drop_path is not None:
            residual = drop_path(residual)
        if (self._observers and step is not None
                and residual.dtype == identity.dtype
                and not torch.is_grad_enabled()):
            # Nothing else needs f ⊗ Δt, and a new map costs more than the sum.
            total = residual.add_(identity)
        else:
            total = identity + residual
        out = self.activation(total)
        if post_activation is not None:
            out = post_activation(out)
        for observer in tuple(self._observers.values()):
            observer(self, identity, f, step, out)
        return out

    def observe(self, observer: Observer) -> RemovableHandle:
        """Register ``observer(self, x, f, step, out)``.

        It is called in every forward pass with x_t, f(x_t), the attention
        value (None for a plain block) and what the block returns; x_{t+1}
        before the activation is x + f * step. Tensors are overwritten by
        later layers: reduce them inside the observer.

        Returns:
            RemovableHandle: Its ``remove()`` ends the observation.
        """
        handle = RemovableHandle(self._observers)
        self._observers[handle.id] = observer
        return handle

    def __getstate__(self) -> dict:
        """Leave observers out of copies: an EMA model is not observed."""
        return {**self.__dict__, '_observers': OrderedDict(),
                '_was_fused': None}
