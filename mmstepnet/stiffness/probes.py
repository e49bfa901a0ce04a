"""Probes measure the residual steps of one block while it runs.

A probe registers hooks on its block and reports, once a forward pass and
step, the norms from which all readings follow. Features are reduced where
they pass; no hook returns anything. Hooks inside a block count only between
the block's beginning and its end, so that the second run of a checkpointed
block, during backward, is not taken for another sample.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn as nn
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from mmstepnet.steps.residual import ResidualStep

from .readings import StepNorms
from .residual_blocks import Branch, States
from .sample_norms import measure_branch, norm, norm_and_distance

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

    @property
    def steps(self) -> list[str]:
        """Names of the block's residual steps, in their order."""
        return [self.name]

    def attach(self) -> list[RemovableHandle]:
        """Register all hooks."""
        return [
            self.block.register_forward_pre_hook(
                self._begin, with_kwargs=True),
            *self.attach_inside(),
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

    def _begin(self, block: nn.Module, inputs: tuple, named: dict) -> None:
        if block is not self.block:
            return
        x = next(iter((*inputs, *named.values())), None)
        if not isinstance(x, Tensor):
            raise TypeError(f'block {self.name} ({type(block).__name__}) '
                            f'takes no tensor as first argument, hence has no '
                            f'state x_t to measure')
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

    @torch.no_grad()
    def _observe(self, name: str, module: ResidualStep, x: Tensor, f: Tensor,
                 step: Tensor | None, x_next: Tensor | None,
                 out: Tensor) -> None:
        if self.active:
            f_norm, change, mean = measure_branch(f, step)
            x_norm, returned = norm_and_distance(x, out)
            self.report(name,
                        StepNorms(x_norm, f_norm, change, returned, mean))


class BranchProbe(Probe):
    """Measures a block whose f, and gate, submodules return."""

    def __init__(self, name: str, block: nn.Module, report: Report,
                 described: Branch):
        super().__init__(name, block, report)
        self.branch = described.branch(block)
        self.gate = described.gate(block)
        self.projection = getattr(block, 'downsample', None)

    def attach_inside(self) -> list[RemovableHandle]:
        """See :class:`Probe`."""
        handles = [self.branch.register_forward_hook(self._take_f)]
        if self.gate is not None:
            handles.append(self.gate.register_forward_hook(self._take_gate))
        if self.projection is not None:
            handles.append(
                self.projection.register_forward_hook(self._take_identity))
        return handles

    def reset(self) -> None:
        """See :class:`Probe`."""
        super().reset()
        self.x = self.f = self.measured = None

    def begin(self, x: Tensor) -> None:
        """See :class:`Probe`."""
        self.x, self.f, self.measured = x, None, None

    def end(self, out: Tensor) -> None:
        """See :class:`Probe`."""
        if self.measured is None:
            raise RuntimeError(
                f'block {self.name} ({type(self.block).__name__}) ran without '
                f'its {"branch" if self.f is None else "gate"}, of type '
                f'{type(self.branch if self.f is None else self.gate)}')
        self.check_state('output', out, self.x)
        f_norm, change, step = self.measured
        x_norm, returned = norm_and_distance(self.x, out)
        self.report(self.name,
                    StepNorms(x_norm, f_norm, change, returned, step))

    @torch.no_grad()
    def _take_f(self, module: nn.Module, inputs: tuple, f: Tensor) -> None:
        if not self.active:
            return
        # The addition may overwrite f; a gate still sees it.
        self.f = f
        if self.gate is None:
            self.measured = measure_branch(f, None)

    @torch.no_grad()
    def _take_gate(self, module: nn.Module, inputs: tuple,
                   step: Tensor) -> None:
        if self.active:
            self.measured = measure_branch(self.f, step)

    def _take_identity(self, module: nn.Module, inputs: tuple,
                       identity: Tensor) -> None:
        if self.active:
            self.x = identity


class StatesProbe(Probe):
    """Measures a block of plain steps by the states between them.

    Where stochastic depth is active, a step is what goes into it.
    """

    def __init__(self, name: str, block: nn.Module, report: Report,
                 described: States):
        super().__init__(name, block, report)
        self.norm = getattr(block, described.norm) if described.norm else None

    @property
    def steps(self) -> list[str]:
        """See :class:`Probe`."""
        if self.norm is None:
            return [self.name]
        return [f'{self.name}.attn', f'{self.name}.ffn']

    def attach_inside(self) -> list[RemovableHandle]:
        """See :class:`Probe`."""
        handles = [
            module.register_forward_pre_hook(self._drop_path)
            for module in self.block.modules() if is_drop_path(module)
        ]
        if self.norm is not None:
            handles.append(
                self.norm.register_forward_pre_hook(self._between))
        return handles

    def reset(self) -> None:
        """See :class:`Probe`."""
        super().reset()
        self.x = self.proposed = None

    def begin(self, x: Tensor) -> None:
        """See :class:`Probe`."""
        self.x, self.proposed = x, None
        self.pending = self.steps

    def end(self, out: Tensor) -> None:
        """See :class:`Probe`."""
        self._step_to(out)
        if self.pending:
            raise RuntimeError(f'block {self.name} '
                               f'({type(self.block).__name__}) ran without '
                               f'step {self.pending[0]}')

    @torch.no_grad()
    def _between(self, module: nn.Module, inputs: tuple) -> None:
        if self.active:
            self._step_to(inputs[0])

    @torch.no_grad()
    def _drop_path(self, module: nn.Module, inputs: tuple) -> None:
        if self.active and drops(module):
            self.proposed = norm(inputs[0])

    def _step_to(self, x_next: Tensor) -> None:
        self.check_state('next state', x_next, self.x)
        x_norm, returned = norm_and_distance(self.x, x_next)
        change = returned if self.proposed is None else self.proposed
        self.report(
            self.pending.pop(0),
            StepNorms(x_norm, change, change, returned,
                      torch.ones_like(change)))
        self.x, self.proposed = x_next, None


def is_drop_path(module: nn.Module) -> bool:
    """Whether the module is stochastic depth."""
    return type(module).__name__ in DROP_PATHS


def drops(module: nn.Module) -> bool:
    """Whether stochastic depth drops paths at the moment."""
    share = getattr(module, 'drop_prob', getattr(module, 'p', 0))
    return module.training and bool(share)
