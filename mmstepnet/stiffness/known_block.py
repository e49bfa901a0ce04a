"""Measuring the blocks that :func:`insert_steps` knows."""

import torch
import torch.nn as nn
from torch import Tensor

from mmstepnet.steps.known_blocks import KnownBlock
from mmstepnet.steps.step_block import StepBlock, put_steps, take_steps

from .probes import Report, ResidualStepProbe
from .sample_norms import measure_branch


class MeasuredBlock(StepBlock):
    """A block of another library that takes steps while it is measured.

    Copies made meanwhile, of an EMA or a pickle, are the host's own block.
    """

    lasting = False
    recorders = 0
    """How many measure it."""

    def __setstate__(self, state: dict) -> None:
        super().__setstate__(state)
        self.recorders = 1
        self.release()

    def release(self) -> None:
        """One recorder less; the last one leaves the host's block."""
        self.recorders -= 1
        if not self.recorders:
            del self.recorders
            take_steps(self)


class KnownBlockProbe(ResidualStepProbe):
    """Measures a block of another library, which takes steps meanwhile.

    The table of known blocks that :func:`insert_steps` reads says how. The
    block computes what it did before, with Δt = 1; a gate that the host
    has behind its norm is taken for Δt. A block that checkpoints itself
    (``with_cp``) keeps its activations meanwhile: its second run comes in
    backward, when the steps may have been taken out again.
    """

    def __init__(self, name: str, block: nn.Module, report: Report,
                 known: KnownBlock):
        super().__init__(name, block, report)
        self.parts = dict.fromkeys(step.name for step in known.steps)
        gates = (step.gate(block) for step in known.steps if step.gate)
        self.gate = next(filter(None, gates), None)

    def attach_inside(self) -> list:
        """See :class:`Probe`."""
        block = self.block
        if isinstance(block, StepBlock) and block.lasting:
            raise RuntimeError(
                f'block {self.name} has got steps since this recorder was '
                f'built; build the recorder after insert_steps')
        if not isinstance(block, MeasuredBlock):
            put_steps(block, [None] * len(self.parts), MeasuredBlock)
            if getattr(block, 'with_cp', False):
                block._switched['with_cp'] = True
                block.with_cp = False
        block.recorders += 1
        self.parts = {part: getattr(block, part) for part in self.parts}
        handles = [*super().attach_inside(), self]
        if self.gate is not None:
            f, step = self.gate
            handles += [f.register_forward_hook(self._take_f),
                        step.register_forward_hook(self._take_gate)]
        return handles

    def remove(self) -> None:
        """Take the steps out: the probe is the handle of what it put in."""
        self.block.release()

    def reset(self) -> None:
        """See :class:`Probe`."""
        super().reset()
        self.f = self.gated = None

    def measure(self, f: Tensor, step: Tensor | None) -> tuple[Tensor, ...]:
        """See :class:`ResidualStepProbe`."""
        return super().measure(f, step) if self.gate is None else self.gated

    def _take_f(self, module: nn.Module, inputs: tuple, f: Tensor) -> None:
        if self.active:
            self.f = f

    @torch.no_grad()
    def _take_gate(self, module: nn.Module, inputs: tuple,
                   step: Tensor) -> None:
        if self.active:
            f = self.f
            if step.dim() != f.dim():
                # timm's ECA gates (N, C, H, W) by (N, 1, C).
                step = step.reshape(*f.shape[:2], *[1] * (f.dim() - 2))
            self.gated = measure_branch(f, step)
