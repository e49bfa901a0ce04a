"""Norms of one residual step, taken while its tensors exist."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mmstepnet.tracing import Call, tensors

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
        self.gate: Tensor | None = None
        # Norms, once they are measured.
        self.x: Any = None
        self.f: Any = None
        self.returned: dict[Call | None, Tensor] = {}

    def _samples_first(self, t: Tensor) -> Tensor:
        return t.movedim(self.axis, 0) if self.axis else t

    def see_branch(
        self,
        f: Tensor,
        step: Tensor | None,
        dropped: bool,
        scales: tuple = (),
        scale: float = 1,
    ) -> None:
        """Measure the branch, which may soon be overwritten.

        Args:
            f (Tensor): The branch f(x_t), as large as the state.
            step (Tensor, optional): The attention value. None is 1.
            dropped (bool): Whether stochastic depth comes on top, so that
                the sum has changed by something else.
            scales (tuple): Numbers and weights that belong to the branch.
                Defaults to none.
            scale (float): A factor of both in the sum. Defaults to 1.
        """
        self.dropped = dropped
        self.gate = step
        with hidden():
            for k in scales:
                f = f * k
            if step is not None and step.dim() == f.dim():
                step = self._samples_first(step)
            self.f, self.change, self.step = branch_norms(
                self._samples_first(f), step
            )
            if scale != 1:
                self.f, self.change = (
                    value * abs(scale) for value in (self.f, self.change)
                )

    def see_sum(self, total: Tensor) -> None:
        """Measure the branch by what it has changed."""
        with hidden():
            self.x, self.change = norm_and_distance(
                self.state, self._samples_first(total)
            )
            self.f = self.change
            self.step = torch.ones_like(self.change)

    def see_output(self, call: Call | None, value: Tensor, same: bool) -> None:
        """Measure what a call makes of the sum.

        Args:
            call (Call, optional): The one that returns it. None where it is
                the state of the next step.
            value (Tensor): What it returns, as large as the state.
            same (bool): Whether it is the sum itself.
        """
        if same and not self.dropped:
            distance = self.change
        else:
            with hidden():
                self.x, distance = norm_and_distance(
                    self.state, self._samples_first(value)
                )
        self.returned[call] = distance

    def finish(self) -> None:
        """Let the state go."""
        if self.state is not None and self.x is None:
            with hidden():
                self.x = norm(self.state)
        self.state = None

    def norms(self, block: Call | None, samples: int) -> Tensor:
        """Norms of the step of a block, by whole samples.

        Args:
            block (Call, optional): That of the block.
            samples (int): Number N of samples. A state may hold several
                parts of each, such as frames or windows, which stand together.

        Returns:
            Tensor: ‖x_t‖, ‖f‖, ‖f ⊗ Δt‖ and ‖out − x_t‖ with what the block
            returns, and the mean attention value, (5, N), float64.
        """
        returned = self.returned.get(
            block, self.returned.get(None, self.change)
        )
        parts = torch.stack(
            [self.x, self.f, self.change, returned, self.step]
        ).view(5, samples, -1)
        if parts.shape[2] == 1:
            return parts[..., 0]
        return torch.cat([parts[:4].square().sum(2).sqrt(), parts[4:].mean(2)])


def compute_fields(
    names: Sequence[str], norms: Tensor
) -> tuple[Tensor, dict[int, str]]:
    """All fields of one forward pass.

    Args:
        names (Sequence[str]): Names of the L steps.
        norms (Tensor): ‖x_t‖, ‖f‖, ‖f ⊗ Δt‖, ‖out − x_t‖ and the mean
            attention value of each sample at each step, (5, N, L).

    Returns:
        tuple: Fields in the order of ``FIELDS``, (N, 6, L), float32; and, by
        their places, the samples that cannot be measured, because a norm or an
        index is not finite in float32, each with what is said of it.
    """
    x, f, change, returned, step = norms.cpu()
    changes = torch.stack([f, change, returned], 1)
    nsi = torch.where(changes == 0, changes, changes / x[:, None])
    fields = torch.cat([nsi, torch.stack([x, f, step], 1)], 1).float()
    without = {}
    for sample, block in (~fields.isfinite().all(1)).nonzero().tolist():
        why = (
            f'has no finite index at block {names[block]}: its features '
            'are NaN or infinite (half precision overflows above 65504), '
            'or a state of norm 0 changes'
        )
        without.setdefault(sample, why)
    return fields, without


def input_sizes(
    inputs: Sequence, named: dict
) -> tuple[int | None, int | None, set[int]]:
    """Numbers of samples and of tokens that a model was given.

    They are the first two axes of the first tensor with several axes. A list,
    as of images (C, H, W), holds as many samples as items.

    Returns:
        tuple: Both numbers, None where there is none, and the first axes of
        tensors that disagree: as of a graph, or of texts beside images.
    """
    shapes = [t.shape for t in tensors(inputs, named) if t.dim()]
    several = [s for s in shapes if len(s) > 1]
    first = next(iter((*inputs, *named.values())), None)
    shape = next(iter((*several, *shapes)), ())
    if (
        isinstance(first, list)
        and first
        and not (isinstance(first[0], Tensor) and first[0].dim() > 3)
    ):
        shape = (len(first),)
    samples = shape[0] if shape else None
    tokens = shape[1] if len(shape) > 1 else None
    return samples, tokens, {s[0] for s in several} - {samples}
