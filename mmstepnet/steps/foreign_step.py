"""A step with what blocks of other libraries bring of their own."""

from collections.abc import Callable

import torch.nn as nn
from torch import Tensor

from mmstepnet.attentions import choose_step, of_kept

from .residual import ResidualStep


class ForeignStep(ResidualStep):
    """A :class:`ResidualStep` that applies what its block brings."""

    def forward(self,
                identity: Tensor,
                branch: Tensor,
                norm: nn.Module | None = None,
                post_activation: Callable[[Tensor], Tensor] | None = None,
                drop_path: Callable[[Tensor], Tensor] | None = None,
                keep: Tensor | None = None) -> Tensor:
        """Take the step.

        Args:
            identity (Tensor): See :meth:`ResidualStep.forward`.
            branch (Tensor): Likewise.
            norm (nn.Module, optional): Likewise.
            post_activation (Callable, optional): Activation that the block
                keeps under a key of its own, applied behind
                :attr:`activation`.
            drop_path (Callable, optional): Stochastic depth of the block's,
                applied behind :attr:`drop_path`.
            keep (Tensor, optional): Places that the attention sees,
                (N, 1, H, W) in bool.
        """
        if post_activation is None and drop_path is None and keep is None:
            return super().forward(identity, branch, norm)
        f = branch if norm is None else norm(branch)
        if keep is None or self.attention is None:
            step = self.choose(identity, f)
        else:
            step = choose_step(self.attention, of_kept(identity, keep),
                               of_kept(f, keep)).to(f.dtype)
        residual = self.drop_path(f if step is None else f * step)
        if drop_path is not None:
            residual = drop_path(residual)
        out = self.activation(identity + residual)
        if post_activation is not None:
            out = post_activation(out)
        self.report(identity, f, step, out)
        return out
