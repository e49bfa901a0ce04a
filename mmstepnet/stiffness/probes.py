"""Probes measure the residual steps of one block while it runs.

A probe registers hooks on its block and reports, once a forward pass and
step, the norms from which all readings follow. Features are reduced where
they pass; no hook returns anything. Hooks inside a block count only between
the block's beginning and its end, and no block begins during backward, so
that the second run of what is checkpointed is not taken for another sample.
"""

from collections.abc import Callable
from functools import partial
from inspect import signature

import torch
import torch.nn as nn
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from mmstepnet.steps.residual import ResidualStep
from mmstepnet.steps.step_block import StepBlock
from mmstepnet.torch_version import is_backward

from .readings import StepNorms
from .sample_norms import measure_branch, norm_and_distance

DROP_PATHS = ('DropPath', 'StochasticDepth')
"""Classes of stochastic depth in mmcv, mmpretrain, timm and torchvision."""


Report = Callable[[str, StepNorms], None]


class Probe:
    """Base of all probes.

    Args:
        name (str): Name of the block.
        block (nn.Module): The block.
        report (Callable): Called as ``report(step_name, norms)``.
    """

    def __init__(self, name: str, block: nn.Module, report: Report):
        self.name = name
        self.block = block
        self.report = report
        self.active = False
        # What the first argument of its forward is called.
        self.state = block.state if isinstance(block, StepBlock) else next(
            iter(signature(block.forward).parameters), None)

    @property
    def steps(self) -> list[str]:
        """Names of the block's residual steps, in their order."""
        return [self.name]

    def attach(self) -> list[RemovableHandle]:
        """Register all hooks, or none where a block refuses."""
        inside = self.attach_inside()
        return [
            self.block.register_forward_pre_hook(
                self._begin, with_kwargs=True),
            *inside,
            self.block.register_forward_hook(self._end, prepend=True),
            # Runs where the block raises, too.
            self.block.register_forward_hook(self._leave, always_call=True),
        ]

    def attach_inside(self) -> list[RemovableHandle]:
        """Register the hooks on the block's parts."""
        return []

    def begin(self, x: Tensor) -> None:
        """Take notice of the block's input."""

    def end(self, out: Tensor) -> None:
        """Take notice of the block's output."""

    def reset(self) -> None:
        """Forget a pass that was interrupted."""
        self.active = False

    def __deepcopy__(self, memo: dict) -> 'Probe':
        """Stay one: hooks in a copy of the model (EMA) lead here in vain."""
        return self

    def __getstate__(self) -> dict:
        """Those in a pickle lead to a probe of nothing."""
        return dict(block=None, active=False)

    def _begin(self, block: nn.Module, inputs: tuple, named: dict) -> None:
        if block is not self.block or is_backward():
            return
        x = inputs[0] if inputs else named.get(self.state)
        what = f'block {self.name} ({type(block).__name__})'
        if not isinstance(x, Tensor):
            raise TypeError(f'{what} takes no tensor as first argument, hence '
                            f'has no state x_t to measure')
        if x.is_nested:
            raise ValueError(
                f'{what} takes a nested tensor, which PyTorch makes of a '
                f'padding mask; call torch.backends.mha.set_fastpath_enabled('
                f'False) before you record')
        if x.dim() < 2 or not x.numel():
            raise ValueError(f'{what} takes a state {tuple(x.shape)}; '
                             f'expected samples, (N, ...), one or more')
        if isinstance(block, (nn.TransformerEncoderLayer,
                              nn.TransformerDecoderLayer)) and (
                                  not block.self_attn.batch_first):
            raise ValueError(f'{what} has tokens before samples; build it '
                             f'with batch_first=True to measure samples')
        self.active = True
        with torch.no_grad():
            self.begin(x)

    def _end(self, block: nn.Module, inputs: tuple, out: Tensor) -> None:
        if block is not self.block or not self.active:
            return
        if isinstance(out, tuple) and out:  # the state, then what else
            out = out[0]
        if not isinstance(out, Tensor):
            raise TypeError(f'block {self.name} ({type(block).__name__}) '
                            f'returns {type(out).__name__}; expected a tensor '
                            f'or a tuple that begins with one')
        with torch.no_grad():
            self.end(out)
        self.reset()

    def _leave(self, block: nn.Module, inputs: tuple, out: object) -> None:
        if block is self.block and self.active:
            self.reset()

    def check_state(self, what: str, value: Tensor, x: Tensor) -> None:
        """Refuse to compare states of different shapes."""
        if value.shape != x.shape:
            raise ValueError(
                f'block {self.name} ({type(self.block).__name__}) has '
                f'identity {tuple(x.shape)} and {what} '
                f'{tuple(value.shape)}: it is no residual step. Select '
                f'residual blocks by blocks=')


class ResidualStepProbe(Probe):
    """Measures a block of this package at its :class:`ResidualStep`.

    A block with several of them (a transformer's) is as many steps, named
    by their attributes.
    """

    def __init__(self, name: str, block: nn.Module, report: Report):
        super().__init__(name, block, report)
        self.parts = {
            part: module
            for part, module in block.named_children()
            if isinstance(module, ResidualStep)
        }

    @property
    def steps(self) -> list[str]:
        """See :class:`Probe`."""
        if len(self.parts) == 1:
            return [self.name]
        return [f'{self.name}.{part}' for part in self.parts]

    def attach_inside(self) -> list[RemovableHandle]:
        """See :class:`Probe`."""
        return [
            module.observe(partial(self._observe, name), want_x_next=False)
            for name, module in zip(self.steps, self.parts.values())
        ]

    def measure(self, f: Tensor, step: Tensor | None) -> tuple[Tensor, ...]:
        """‖f‖, ‖f ⊗ Δt‖ and mean Δt, each (N,)."""
        return measure_branch(f, step)

    @torch.no_grad()
    def _observe(self, name: str, module: ResidualStep, x: Tensor, f: Tensor,
                 step: Tensor | None, x_next: Tensor | None,
                 out: Tensor) -> None:
        if self.active:
            f_norm, change, mean = self.measure(f, step)
            x_norm, returned = norm_and_distance(x, out)
            self.report(name,
                        StepNorms(x_norm, f_norm, change, returned, mean))


def is_drop_path(module: nn.Module) -> bool:
    """Whether the module is stochastic depth."""
    return type(module).__name__ in DROP_PATHS


def drops(module: nn.Module) -> bool:
    """Whether stochastic depth drops paths at the moment."""
    share = getattr(module, 'drop_prob', getattr(module, 'p', 0))
    return module.training and bool(share)
