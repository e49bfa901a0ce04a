"""Norms of one residual step, taken while its tensors are there."""

from typing import Any

import torch
from torch import Tensor

from mmstepnet.steps.finding import Run, tensors

from .readings import StepNorms
from .sample_norms import measure_branch, norm, norm_and_distance


class hidden:  # noqa: N801, it reads as torch.no_grad does
    """Hide operations from autograd and from all dispatch modes.

    A class of few calls: a generator, or ``torch.no_grad``, would cost as
    much as a norm of a small state.
    """

    def __enter__(self) -> None:
        self.gradients = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)
        self.guard = torch._C._DisableTorchDispatch()

    def __exit__(self, *error) -> None:
        del self.guard
        torch._C._set_grad_enabled(self.gradients)


class StepMeasurement:
    """Norms of one step, taken while its tensors are there.

    The state is kept until it is known what the block returns.

    Args:
        x (Tensor): The state x_t, (N, ...).
    """

    def __init__(self, x: Tensor):
        self.state: Any = x  # None from the end on
        self.dropped = False
        # Tensors once they are measured.
        self.x: Any = None
        self.f: Any = None
        self.change: Any = None
        self.step: Any = None
        self.handed: Any = None
        self.handed_by: dict[Run | None, Tensor] = {}
        self.last: tuple[object, Any] = None, None

    def see_branch(self, f: Tensor, step: Tensor | None, scale: float,
                   dropped: bool) -> None:
        """Measure the branch, which may soon be overwritten.

        Args:
            f (Tensor): The branch f(x_t), (N, ...).
            step (Tensor, optional): The attention value. None is 1.
            scale (float): What both are multiplied by when they are added.
            dropped (bool): Whether stochastic depth comes on top, so that
                the sum has changed by something else.
        """
        self.dropped = dropped
        with hidden():
            self.f, self.change, self.step = measure_branch(f, step)
            if scale != 1:
                self.f, self.change = (
                    value * abs(scale) for value in (self.f, self.change))

    def see_sum(self, total: Tensor) -> None:
        """Measure the branch by what it has changed."""
        with hidden():
            self.x, self.change = norm_and_distance(self.state, total)
            self.f, self.step = self.change, torch.ones_like(self.change)

    def hand_on(self, run: Run | None, value: Tensor, key: object,
                same: bool) -> None:
        """Measure what a run makes of the sum.

        Args:
            run (Run, optional): The run that returns it; None where it is the
                state of the next step.
            value (Tensor): What it returns, as large as the state.
            key (object): Equal where this value was measured before.
            same (bool): Whether it is the sum itself.
        """
        if same and not self.dropped:
            distance = self.change
        elif key == self.last[0]:
            distance = self.last[1]
        else:
            with hidden():
                self.x, distance = norm_and_distance(self.state, value)
            self.last = key, distance
        if run is None:
            self.handed = distance
        else:
            self.handed_by[run] = distance

    def settle(self) -> None:
        """Let the state go."""
        if self.state is not None and self.x is None:
            with hidden():
                self.x = norm(self.state)
        self.state = None
        self.last = None, None

    def of_block(self, block: Run | None) -> StepNorms:
        """Norms of the step of a block that ran once."""
        returned = self.handed_by.get(block, self.handed)
        return StepNorms(
            self.x, self.f, self.change,
            self.change if returned is None else returned, self.step)


def batch_size(inputs: tuple, named: dict) -> int | None:
    """Number of samples that a model was given, if that can be told."""
    first = next(iter((*inputs, *named.values())), None)
    if isinstance(first, (list, tuple)):
        return len(first)
    first = next(iter(tensors(inputs, named)), None)
    return None if first is None or first.dim() == 0 else len(first)


def count_back(steps: dict[str, StepNorms],
               samples: int | None) -> dict[str, StepNorms]:
    """Norms of whole samples from those of their frames or windows.

    Args:
        steps (dict[str, StepNorms]): Norms by the names of the steps, (M,)
            or as many times more as a sample has parts. Parts of one sample
            stand together.
        samples (int, optional): Number M of samples; None leaves all as it
            is.
    """
    def of_sample(values: Tensor, mean: bool) -> Tensor:
        parts = values.view(samples or 1, -1)
        return parts.mean(1) if mean else parts.square().sum(1).sqrt()

    return {
        name: norms if not samples or len(norms.x) == samples or len(
            norms.x) % samples else StepNorms(
            *(of_sample(getattr(norms, part), part == 'step')
              for part in ('x', 'f', 'change', 'returned', 'step')))
        for name, norms in steps.items()
    }
