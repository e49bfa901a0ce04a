"""Recording the feature trajectory of a residual model."""

from typing import Any

import torch
import torch.nn as nn
from torch import Tensor

from mmstepnet.torch_version import is_backward

from .block_search import Selection, build_probe, find_blocks, unwrap
from .eager import EAGER
from .readings import DEFAULT_READING, FIELDS, StepNorms, compute_fields
from .trajectories import Trajectories


class TrajectoryRecorder:
    r"""Records the neural stiffness index (Eq. 4) while a model runs.

    Sample by sample and block by block, over all of C, H and W, in float32
    or better whatever the model's precision:

    - ``adaptive``: :math:`\lVert f(x_t) \rVert / \lVert x_t \rVert`, that is
      :math:`(x_{t+1} - x_t) / \Delta t` with the attention value as
      :math:`\Delta t`. The default reading.
    - ``unit``: :math:`\lVert f(x_t) \otimes \Delta t \rVert /
      \lVert x_t \rVert`, with :math:`\Delta t = 1` in Eq. 4.
    - ``returned``: :math:`\lVert \mathrm{out} - x_t \rVert /
      \lVert x_t \rVert` with what the block returns, activation included.
    - ``x_norm`` and ``f_norm``: both norms; ``step_mean``: the mean of the
      attention value, 1 in a plain block.

    Stochastic depth is no part of the first two: they measure the step that
    the block proposes. Of a block that is not known this cannot be told, and
    it is an error while paths are dropped. A state of norm 0 that stays where
    it is has index 0.

    The blocks of this package are measured at their :class:`ResidualStep`;
    those of other libraries that :func:`~mmstepnet.steps.insert_steps` knows
    take steps of :math:`\Delta t = 1` meanwhile, and a gate that they have
    behind their norm is taken for :math:`\Delta t`; any other, chosen by
    ``blocks``, is measured by input, output and last activation, with
    :math:`\Delta t = 1`. A stage
    is the container that blocks stand in. The first block of each stage is
    left out. A transformer block is two steps, attention and MLP, both
    recorded. Of IEBN, whose gates stand in the block's norms and hence inside
    f, every reading takes :math:`\Delta t = 1`: its TNS does not compare with
    that of the other attentions.

    Several forward passes add up; a pass that raises adds nothing. Features
    are not kept, only six numbers a sample and block. Copies of the model
    made meanwhile are not recorded. Code compiled by ``torch.compile`` runs
    uncompiled meanwhile, for it would pass the hooks by; PyTorch before 2.6
    cannot do that, and a pass that no hook saw is an error.

    Args:
        model (nn.Module): Model, or a wrapper (``DataParallel``,
            ``DistributedDataParallel``, an averaged or a compiled model).
        blocks (str | type | Sequence, optional): See
            :func:`~mmstepnet.stiffness.block_search.find_blocks`. None is
            every known block, in the ``backbone`` if the model has one.

    Raises:
        TypeError: ``model`` is no module.
        ValueError: No block was found, or only first ones of stages.
        RuntimeError: A block's ``forward`` is another than the one that is
            known, and ``blocks`` does not choose.

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

    def __init__(self, model: nn.Module, blocks: Selection | None = None):
        if not isinstance(model, nn.Module):
            raise TypeError(
                f'model must be an nn.Module, got {type(model).__name__}; '
                f"eval() of the hosts' ResNets returns None")
        if isinstance(model, nn.DataParallel) and len(model.device_ids) > 1:
            raise ValueError(
                'nn.DataParallel runs one model in several threads, whose '
                'samples get mixed up; use DistributedDataParallel or '
                'record model.module')
        self.model = unwrap(model)
        found = find_blocks(self.model, blocks)
        self.excluded = [block.name for block in found if block.first]
        recorded = [block for block in found if not block.first]
        if not recorded:
            raise ValueError(
                'every block found is the first of its stage, and these are '
                f'left out: {", ".join(self.excluded)}')
        self._probes = [build_probe(b, self._report) for b in recorded]
        self.blocks = [step for p in self._probes for step in p.steps]
        names = list(dict.fromkeys(block.stage for block in recorded))
        self.stages = torch.tensor([
            names.index(block.stage)
            for block, probe in zip(recorded, self._probes)
            for _ in probe.steps
        ])
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
        self._reset_pass()
        self._once = once
        self._handles = [
            self.model.register_forward_pre_hook(self._begin_pass),
            self.model.register_forward_hook(self._end_pass),
            # Runs where the model raises, too.
            self.model.register_forward_hook(
                self._leave_pass, always_call=True),
        ]
        EAGER.enter()
        try:
            for probe in self._probes:
                self._handles += probe.attach()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Remove all hooks; what was recorded stays. May be called twice."""
        if self._handles:
            EAGER.leave()
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._reset_pass()

    def clear(self) -> None:
        """Forget all samples."""
        self._samples = 0
        self._parts: list[Tensor] = []
        self._reset_pass()

    @property
    def record(self) -> dict[str, Tensor]:
        """All that was recorded, by the names in ``FIELDS``.

        Returns:
            dict[str, Tensor]: Each (N, L), float32, on the CPU.

        Raises:
            RuntimeError: No forward pass was recorded.
        """
        if not self._parts:
            raise RuntimeError(
                'no forward pass was recorded: run the model between start() '
                'and stop(), on the object that the recorder was given'
                + _partly(self._pass, self.blocks))
        if len(self._parts) > 1:
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
        return Trajectories(
            **self.record,
            stages=self.stages,
            blocks=self.blocks,
            excluded=self.excluded,
            settings={
                'model': type(self.model).__name__,
                'split': 'unknown',
                'reading': DEFAULT_READING,
                'dataset_size': len(self),
                **settings
            })

    @property
    def nsi(self) -> Tensor:
        """NSI in the default reading, (N, L), see :attr:`record`."""
        return self.record[DEFAULT_READING]

    def __deepcopy__(self, memo: dict) -> 'TrajectoryRecorder':
        """Stay one: hooks in a copy of the model lead here in vain."""
        return self

    def __getstate__(self) -> dict:
        """Those in a pickle lead to a recorder of nothing."""
        return dict(model=None)

    def _reset_pass(self) -> None:
        self._pass: dict[str, StepNorms] = {}
        # Rows of the model's pass; None where the blocks run by themselves.
        self._pending: list[Tensor] | None = None
        for probe in self._probes:
            probe.reset()

    def _begin_pass(self, model: nn.Module, inputs: tuple) -> None:
        if model is self.model and not is_backward():
            self._reset_pass()
            self._pending = []

    def _end_pass(self, model: nn.Module, inputs: tuple, out: object) -> None:
        if model is not self.model or is_backward():
            return
        if self._pass or not self._pending:
            raise RuntimeError(
                'a forward pass of the model did not run all blocks'
                + _partly(self._pass, self.blocks) + '. Name those that run '
                'by blocks=; if torch.compile made the model, record the '
                'original one')
        self._commit(*self._pending)

    def _leave_pass(self, model: nn.Module, inputs: tuple,
                    out: object) -> None:
        if model is self.model:
            self._reset_pass()
            if self._once:
                self.stop()

    def _commit(self, *parts: Tensor) -> None:
        self._parts += parts
        self._samples += sum(map(len, parts))

    def _report(self, step: str, norms: StepNorms) -> None:
        if step in self._pass:
            missing = _partly(self._pass, self.blocks)
            self._reset_pass()
            raise RuntimeError(
                f'{step} ran a second time in one forward pass' + missing +
                '. Blocks that share weights cannot be told apart; name '
                'others by blocks=. If the pass before was interrupted, run '
                'this one again')
        self._pass[step] = norms
        if len(self._pass) == len(self.blocks):
            self._complete_pass()

    def _complete_pass(self) -> None:
        steps = {name: self._pass[name] for name in self.blocks}
        self._pass = {}
        seen = self._samples + sum(map(len, self._pending or ()))
        fields = compute_fields(steps, seen)
        if self._pending is None:
            self._commit(fields)
        else:
            self._pending.append(fields)


def _partly(seen: dict, blocks: list[str]) -> str:
    missing = [name for name in blocks if name not in seen]
    if len(missing) == len(blocks):
        return ': none of them ran'
    names = ', '.join(missing[:5]) + (', …' if len(missing) > 5 else '')
    return f': {names} did not run'
