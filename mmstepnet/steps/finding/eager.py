"""Compiled code passes hooks by: keep it uncompiled while someone records."""

import sys

import torch


class Eager:
    """Keeps compiled code uncompiled from the first recorder to the last."""

    def __init__(self):
        self.recorders = 0
        self.stance = None

    def enter(self) -> None:
        """Begin, or join those who have begun."""
        self.recorders += 1
        # Nothing was compiled where dynamo was never imported (it is slow
        # to), and PyTorch before 2.6 has no stance.
        if (self.stance is None and 'torch._dynamo' in sys.modules
                and hasattr(torch.compiler, 'set_stance')):
            self.stance = torch.compiler.set_stance('force_eager')
            self.stance.__enter__()

    def __enter__(self) -> None:
        self.enter()

    def __exit__(self, *error) -> None:
        self.leave()

    def leave(self) -> None:
        """End; compiled code returns with the last one who leaves."""
        self.recorders -= 1
        if self.recorders == 0 and self.stance is not None:
            self.stance.__exit__(None, None, None)
            self.stance = None


EAGER = Eager()
