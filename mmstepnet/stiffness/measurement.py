"""Norms of one residual step, taken while its tensors exist."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mmstepnet.steps.finding import Run, tensors

from .norms import branch_norms, norm, norm_and_distance


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
    """Norms of one step, taken while its tensors exist.

    The state is kept until the step's block returns.

    Args:
        x (Tensor): The state x_t.
        axis (int, optional): Axis of its samples. None is not known: then the
            norms mean nothing. Defaults to 0.
    """

    def __init__(self, x: Tensor, axis: int | None = 0):
        self.axis = axis
        self.state: Any = self._samples_first(x)  # None from the end on
        self.dropped = False
        # Norms, once they are measured.
        self.x: Any = None
        self.f: Any = None
        self.change: Any = None
        self.step: Any = None
        self.next_state: Any = None
        self.returned: dict[Run | None, Tensor] = {}
        self.last: tuple[object, Any] = None, None

    def _samples_first(self, t: Tensor) -> Tensor:
        return t.movedim(self.axis, 0) if self.axis else t

    def see_branch(self, f: Tensor, step: Tensor | None, scale: float,
                   dropped: bool) -> None:
        """Measure the branch, which may soon be overwritten.

        Args:
            f (Tensor): The branch f(x_t), as large as the state.
            step (Tensor, optional): The attention value. None is 1.
            scale (float): A factor of both in the sum.
            dropped (bool): Whether stochastic depth comes on top, so that
                the sum has changed by something else.
        """
        self.dropped = dropped
        with hidden():
            if step is not None and step.dim() == f.dim():
                step = self._samples_first(step)
            self.f, self.change, self.step = branch_norms(
                self._samples_first(f), step)
            if scale != 1:
                self.f, self.change = (
                    value * abs(scale) for value in (self.f, self.change))

    def see_sum(self, total: Tensor) -> None:
        """Measure the branch by what it has changed."""
        with hidden():
            self.x, self.change = norm_and_distance(
                self.state, self._samples_first(total))
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
                self.x, distance = norm_and_distance(
                    self.state, self._samples_first(value))
            self.last = key, distance
        if run is None:
            self.next_state = distance
        else:
            self.returned[run] = distance

    def settle(self) -> None:
        """Let the state go."""
        if self.state is not None and self.x is None:
            with hidden():
                self.x = norm(self.state)
        self.state = None
        self.last = None, None

    def norms(self, block: Run | None, samples: int) -> Tensor:
        """Norms of the step of a block, by whole samples.

        Args:
            block (Run, optional): The run of the block.
            samples (int): Number N of samples. A state may hold several
                parts of each, such as frames or windows, which stand together.

        Returns:
            Tensor: ‖x_t‖, ‖f‖, ‖f ⊗ Δt‖ and ‖out − x_t‖ with what the block
            returns, and the mean attention value, (5, N), float64.
        """
        returned = self.returned.get(block, self.next_state)
        if returned is None:
            returned = self.change
        parts = torch.stack([
            self.x, self.f, self.change, returned, self.step
        ]).view(5, samples, -1)
        if parts.shape[2] == 1:
            return parts[..., 0]
        return torch.cat([parts[:4].square().sum(2).sqrt(),
                          parts[4:].mean(2)])


def input_sizes(inputs: Sequence,
                named: dict) -> tuple[int | None, int | None]:
    """Numbers of samples and of tokens that a model was given.

    They are the first two axes of the first tensor with several axes. A list,
    as of images (C, H, W), holds as many samples as items.

    Returns:
        tuple: Both numbers, None where there is none.
    """
    first = next(iter((*inputs, *named.values())), None)
    if isinstance(first, list) and first and not (
            isinstance(first[0], Tensor) and first[0].dim() > 3):
        return len(first), None
    shapes = [t.shape for t in tensors(inputs, named) if t.dim()]
    shape = next((s for s in shapes if len(s) > 1), next(iter(shapes), None))
    if shape is None:
        return None, None
    return shape[0], shape[1] if len(shape) > 1 else None
