"""Measuring the blocks that :func:`insert_steps` knows."""

import torch.nn as nn

from mmstepnet.steps.known_blocks import KnownBlock
from mmstepnet.steps.step_block import StepBlock, put_steps, take_steps

from .probes import Report, ResidualStepProbe


class KnownBlockProbe(ResidualStepProbe):
    """Measures a block of another library, which takes steps meanwhile.

    The table of known blocks that :func:`insert_steps` reads says how. The
    block computes what it did before, with Δt = 1. A block that checkpoints
    itself (``with_cp``) keeps its activations meanwhile: its second run comes
    in backward, when the steps may have been taken out again.
    """

    def __init__(self, name: str, block: nn.Module, report: Report,
                 known: KnownBlock):
        super().__init__(name, block, report)
        self.parts = dict.fromkeys(step.name for step in known.steps)

    def attach_inside(self) -> list:
        """See :class:`Probe`."""
        put_steps(self.block, [None] * len(self.parts))
        self.with_cp = getattr(self.block, 'with_cp', False)
        if self.with_cp:
            self.block.with_cp = False
        self.parts = {part: getattr(self.block, part) for part in self.parts}
        return [*super().attach_inside(), self]

    def remove(self) -> None:
        """Take the steps out: the probe is the handle of what it put in."""
        if isinstance(self.block, StepBlock):
            take_steps(self.block)
            if self.with_cp:
                self.block.with_cp = True
