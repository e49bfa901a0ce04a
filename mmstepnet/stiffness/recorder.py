"""Recording the feature trajectory of a residual model."""

import logging
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn as nn
from torch import Tensor

from mmstepnet.steps.examples import run_batch
from mmstepnet.torch_version import is_backward
from mmstepnet.tracing import (
    Arrangement,
    Finder,
    FoundStep,
    Selection,
    in_mode,
    select,
    unwrap,
)

from .measurement import StepMeasurement, compute_fields, hidden, input_sizes
from .readings import DEFAULT_READING, FIELDS
from .trajectories import Trajectories

LOGGER = logging.getLogger(__name__)


class TrajectoryRecorder:
    r"""Records the neural stiffness index (Eq. 4) while a model runs.

    Sample by sample and block by block, over all of C, H and W, in float32
    or better whatever the model's precision:

    - ``adaptive``: :math:`\lVert f(x_t) \rVert / \lVert x_t \rVert`, that is
      :math:`(x_{t+1} - x_t) / \Delta t` with the attention value as
      :math:`\Delta t`. The default reading. It is computed from f, so a step
      may be 0 or negative.
    - ``unit``: :math:`\lVert f(x_t) \otimes \Delta t \rVert /
      \lVert x_t \rVert`, with :math:`\Delta t = 1` in Eq. 4.
    - ``returned``: :math:`\lVert \mathrm{out} - x_t \rVert /
      \lVert x_t \rVert` with what the block returns, activation included.
    - ``x_norm`` and ``f_norm``: both norms; ``step_mean``: the mean of the
      attention value, 1 in a plain block.

    Stochastic depth is no part of the first two: they measure the step that
    the block proposes. A state of norm 0 that stays where it is has index 0.

    A residual step is found by running, see :func:`find_steps`: it is the
    sum of a state and of something computed from it, and no class is known
    by name. A factor that was computed from the state, one number an image
    and channel, is the attention value, else :math:`\Delta t = 1`; a
    :class:`~mmstepnet.ResidualStep` reports its own. A stage is a container
    of blocks, and the first block of each stage is left out, unless it is the
    only one and projects no identity (a reading). A Transformer's block is
    two steps, attention and MLP, both recorded. Of IEBN, whose gates
    stand in the block's norms and hence inside f, every reading takes
    :math:`\Delta t = 1`: its TNS does not compare with that of the other
    attentions.

    The first axis of the model's first input is that of the samples; a state
    of as many as another input has is refused. A state may hold them along its
    second axis, (L, N, C), or several parts of each along its first, such as
    frames or windows; parts of one sample must stand together. Which it is,
    the number of samples decides. States that are folded frame by frame, (T ·
    N, ...), cannot be told from these: their samples get mixed up. Padded
    tokens count as others do.

    Several forward passes add up; a pass that raises adds nothing, and one
    with other steps than the first is an error. Features are not kept, only
    six numbers a sample and step. Nothing in the model is replaced, and it
    returns what it returns unrecorded, bit for bit, but where hooks alone
    change that (:class:`torch.nn.TransformerEncoder` has a fast path without
    hooks). Copies of the model made meanwhile are not recorded. Code compiled
    by ``torch.compile`` runs uncompiled meanwhile, for it would pass the hooks
    by; PyTorch before 2.6 cannot do that.

    Args:
        model (nn.Module): Model, or a wrapper
            (``DistributedDataParallel``, an averaged or a compiled model).
        blocks (str | type | Sequence, optional): Blocks to choose among
            what is found, or modules that contain them, as in
            :func:`mmstepnet.insert_steps`. None is all, in the ``backbone``
            if the model has one: the blocks of a detector's heads work on
            regions, not on images.
        on_bad (Callable, optional): Called as ``on_bad(bad)`` where samples
            of a pass cannot be measured, with the reasons by their rows, and
            they are left out; or with the exception, where the whole pass
            cannot. None raises. Defaults to None.
        on_repeated (Callable, optional): Called where all steps ran several
            times in one pass, each time on other inputs, and the first time
            counts. None raises. Defaults to None.

    Attributes:
        steps (list[FoundStep]): After a pass, all that was found, with the
            reasons for which some of it is left out.
        blocks (list[str]): Names of the L recorded steps.
        stages (Tensor): Stage of each, (L,).
        excluded (list[str]): First blocks of stages, which are left out.
        last (int): Samples of the last pass, with those left out.

    Raises:
        TypeError: ``model`` is no module, or was made by ``torch.jit``.
        ValueError: ``blocks`` matches no module. And, from the first forward
            pass on: no step was found, or only those of first blocks, or it
            is not clear which axis of a state is that of the samples.

    Example:
        >>> from mmstepnet.models import StepResNetCIFAR
        >>> from mmstepnet.stiffness import total_neural_stiffness
        >>> model = StepResNetCIFAR(20).eval()
        >>> with TrajectoryRecorder(model) as recorder:
        ...     _ = model(torch.rand(4, 3, 32, 32))
        >>> recorder.blocks
        ['layer1.1', 'layer1.2', 'layer2.1', 'layer2.2', 'layer3.1', 'layer3.2']
        >>> total_neural_stiffness(recorder.nsi, recorder.stages).shape
        torch.Size([4])
    """  # noqa: E501

    def __init__(
        self,
        model: nn.Module,
        blocks: Selection | None = None,
        *,
        on_bad: Callable[[dict[int, str] | Exception], None] | None = None,
        on_repeated: Callable[[], None] | None = None,
    ):
        self.model = unwrap(model)
        self._on_bad = on_bad
        self._on_repeated = on_repeated
        self._finder = Finder(self.model)
        if blocks is not None:
            select(self._finder.modules, blocks)
        self._selection = blocks
        self._handles = []
        self.clear()

    def __enter__(self) -> 'TrajectoryRecorder':
        self.start()
        return self

    def __exit__(self, *error) -> None:
        self.stop()

    def __len__(self) -> int:
        """Number of samples recorded."""
        return self._samples

    def start(self, once: bool = False) -> None:
        """Begin, or continue, to record.

        Args:
            once (bool): Whether to stop behind the model's next pass, however
                it ends. Defaults to False.
        """
        if self._handles:
            raise RuntimeError('the recorder has been started already')
        self._once = once
        self._finder = Finder(self.model, norms=self._measure)
        self._handles = [
            self.model.register_forward_pre_hook(
                self._begin_pass, with_kwargs=True
            ),
            *self._finder.attach(),
            self.model.register_forward_hook(self._end_pass),
            # Runs where the model raises, too.
            self.model.register_forward_hook(
                self._leave_pass, always_call=True
            ),
        ]

    def stop(self) -> None:
        """Remove all hooks; what was recorded stays. May be called twice."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def clear(self) -> None:
        """Forget all samples."""
        self._samples = 0
        self._parts: list[Tensor] = []
        self.last = 0
        self._found: list[FoundStep] | None = None
        self.excluded: list[str] = []
        self._given = input_sizes((), {})
        self._axis: int | None = None

    @property
    def record(self) -> dict[str, Tensor]:
        """All that was recorded, by the names in ``FIELDS``.

        Returns:
            dict[str, Tensor]: Each (N, L), float32, on the CPU, of all passes
            since the last :meth:`clear`.

        Raises:
            RuntimeError: No forward pass was recorded.
        """
        self.steps  # noqa: B018, it refuses where nothing has run
        self._parts = [torch.cat(self._parts)]
        return dict(zip(FIELDS, self._parts[0].unbind(1)))

    def trajectories(self, **settings: Any) -> Trajectories:
        """All that was recorded, as one frozen value.

        Args:
            **settings: How it was recorded: ``model`` (default: name of the
                model's class), ``split`` (default: ``'unknown'``),
                ``reading``, ``dataset_size`` (default: number of samples),
                and any others.

        Raises:
            RuntimeError: No forward pass was recorded.
        """
        arrays: dict[str, Any] = {**self.record, 'stages': self.stages}
        return Trajectories(
            **arrays,
            blocks=self.blocks,
            excluded=self.excluded,
            settings=dict(
                model=type(self.model).__name__,
                split='unknown',
                reading=DEFAULT_READING,
                dataset_size=len(self),
            )
            | settings,
        )

    @property
    def nsi(self) -> Tensor:
        """NSI in the default reading, (N, L), see :attr:`record`."""
        return self.record[DEFAULT_READING]

    def __deepcopy__(self, memo: dict) -> 'TrajectoryRecorder':
        """Stay the same: hooks in a copy of the model do nothing here."""
        return self

    def __getstate__(self) -> dict:
        """Hooks in a pickle lead to a recorder of nothing."""
        return dict(model=None)

    @property
    def steps(self) -> list[FoundStep]:
        """All that was found in the first pass."""
        if self._found is None:
            raise RuntimeError(
                'no forward pass was recorded: call the object that the '
                'recorder was given between start() and stop(), in one thread'
            )
        return self._found

    @property
    def blocks(self) -> list[str]:
        """Names of the recorded steps."""
        return [step.name for step in self.steps if not step.left_out]

    @property
    def stages(self) -> Tensor:
        """Stage of each recorded step, (L,)."""
        stages = [step.stage for step in self.steps if not step.left_out]
        names = list(dict.fromkeys(stages))
        return torch.tensor([names.index(stage) for stage in stages])

    def _begin_pass(self, model: nn.Module, args: tuple, kwargs: dict) -> None:
        if model is self.model and not is_backward():
            self._given = input_sizes(args, kwargs)

    def _measure(self, x: Tensor) -> StepMeasurement:
        """Measure a step from now on, by the axis of its samples.

        Tokens may stand before the samples, (L, N, C). If both axes could be
        that of the samples, those of other states decide, or nothing does.
        """
        samples, tokens, _ = self._given
        axis: int | None = 0
        if samples and samples > 1 and x.dim() not in (2, 4):
            if x.shape[1] == samples:
                if x.shape[0] % samples or x.shape[0] == tokens != samples:
                    self._axis = 1
                axis = self._axis
            elif x.shape[0] == samples:
                self._axis = 0
        if axis == 0 and (
            tuple(x.shape) in self._finder.wrong_shapes
            or (x.dim() == 4 and x.shape[0] != samples == x.shape[1] > 1)
        ):
            axis = None
        return StepMeasurement(x, axis)

    def _end_pass(self, model: nn.Module, args: tuple, out: object) -> None:
        if model is not self.model or is_backward():
            return
        self.last = 0
        try:
            self._measure_pass()
        except Exception as error:
            if self._on_bad is None:
                raise
            self._on_bad(error)

    def _measure_pass(self) -> None:
        """Take over what the finder has measured in a pass."""
        arrangement = self._arrange()
        names = [named.name for named in arrangement.recorded]
        known = names if self._found is None else self.blocks
        other = {*names} ^ {*known}
        if other:
            raise RuntimeError(
                'a forward pass took other steps than the first one, among '
                f'them {", ".join(sorted(other)[:5])}; call eval(), or name '
                'those that run each time by blocks='
            )
        arrangement.recorded.sort(key=lambda named: known.index(named.name))
        samples = self._given[0] or len(arrangement.recorded[0].sum.norms.x)
        norms = []
        for name, step, block in arrangement.recorded:
            count = len(step.norms.x)
            if (
                step.norms.axis is None
                or count % samples
                or count in self._given[2]
            ):
                raise ValueError(
                    f'{name} has a state {step.shape}, in which the axis of '
                    f'{samples} samples is not clear: record batches of '
                    'another size, such as 1, build modules with '
                    'batch_first=True, or choose others by blocks='
                )
            assert block is not None
            with hidden():
                norms.append(step.norms.norms(block.call, samples))
        with hidden():
            fields, bad = compute_fields(known, torch.stack(norms, 2))
        self.last = len(fields)
        if bad:
            if self._on_bad is None:
                row, why = next(iter(bad.items()))
                raise ValueError(f'sample {self._samples + row} {why}')
            self._on_bad(bad)
            fields = fields[
                [row for row in range(self.last) if row not in bad]
            ]
        if self._found is None:
            if arrangement.without:
                LOGGER.warning(
                    'no addition to a state was seen in %s, blocks of a stage',
                    ', '.join(block.name for block in arrangement.without),
                )
            self._found = arrangement.steps
            self.excluded = arrangement.excluded
        self._parts.append(fields)
        self._samples += len(fields)

    def _arrange(self) -> Arrangement:
        """Steps of the last pass; of a network that ran again, the first."""
        arrangement = Arrangement(self._finder, self._selection)
        if not arrangement.recorded:
            raise ValueError(arrangement.explain())
        if arrangement.repeated:
            if self._on_repeated is None:
                raise RuntimeError(
                    'all steps ran several times in one forward pass, each '
                    'time on new inputs; a sample that passes several times, '
                    'or in parts, has no single trajectory: record the part '
                    'that takes one input'
                )
            self._on_repeated()
            arrangement.take_first_pass()
        return arrangement

    def drop_last(self) -> None:
        """Forget the samples of the last pass that was measured."""
        self._samples -= len(self._parts.pop())

    def _leave_pass(self, model: nn.Module, args: tuple, out: object) -> None:
        # Not where another thread is refused while the model runs in this one.
        if model is self.model and self._finder.thread is None:
            self._finder.forget()
            if self._once and not is_backward():
                self.stop()


def measure_stiffness(
    model: nn.Module,
    batches: Iterable[Any],
    /,
    *,
    blocks: Selection | None = None,
    forward: Callable[[nn.Module, Any], Any] | None = None,
    **settings: Any,
) -> Trajectories:
    """Record a model in eval mode; modes are restored afterwards.

    Args:
        model (nn.Module): The model.
        batches (Iterable): What it is called with: tensors, tuples of its
            arguments, or dicts of these by name; or pairs of images and
            labels, of which a model of one argument is given the images.
        blocks (optional): See :class:`TrajectoryRecorder`. Defaults to None.
        forward (Callable, optional): ``forward(model, batch)`` runs the model
            instead, on batches of any kind. Defaults to None.
        **settings: What the recording says of itself, see
            :meth:`TrajectoryRecorder.trajectories`.

    Raises:
        RuntimeError: There was no batch.
        ValueError: No residual step was found.

    Example:
        >>> import torch
        >>> from torchvision.models import resnet18
        >>> from mmstepnet import measure_stiffness
        >>> found = measure_stiffness(resnet18(), [torch.rand(2, 3, 64, 64)])
        >>> found.blocks
        ['layer1.1', 'layer2.1', 'layer3.1', 'layer4.1']
    """
    with (
        in_mode(model, False),
        torch.no_grad(),
        TrajectoryRecorder(model, blocks) as recorder,
    ):
        for batch in batches:
            (forward or run_batch)(model, batch)
    return recorder.trajectories(**settings)
