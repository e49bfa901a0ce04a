"""A look at a job's attentions before the first iteration."""

from collections.abc import Iterator

import torch.nn as nn
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch.nn.modules.batchnorm import _BatchNorm

from mmstepnet.attentions import Attention
from mmstepnet.attentions.base import is_frozen
from mmstepnet.messages import shorten
from mmstepnet.registry import HOOKS
from mmstepnet.steps import ResidualStep
from mmstepnet.tracing import in_mode, unwrap

CALIBRATION = (
    "custom_hooks = [dict(type='mmstepnet.AttentionBNCalibrationHook')]"
)


@HOOKS.register_module()
class GateCheckHook(Hook):
    """Warn of attentions that a training cannot bring to what they are for.

    It changes nothing and refuses nothing. ``tools/train.py`` adds it.
    """

    priority = 'VERY_LOW'  # behind AttentionBNCalibrationHook

    def before_train(self, runner: Runner) -> None:
        """Look at the model as its training begins."""
        for problem in gate_problems(unwrap(runner.model)):
            runner.logger.warning(problem)


def gate_problems(model: nn.Module) -> Iterator[str]:
    """Say which attentions stay at their start, or normalise by nothing.

    BNs that have seen no data and stay in eval mode, as with
    ``norm_eval=True``; and frozen attentions in the paper's form for which no
    weights were loaded. Of those with ``init_step`` the backbone warns.
    """
    unseen: dict[str, None] = {}
    frozen: dict[str, None] = {}
    with in_mode(model, True):
        for name, step in model.named_modules():
            attention = getattr(step, 'attention', None)
            if not (
                isinstance(step, ResidualStep)
                and isinstance(attention, Attention)
            ):
                continue
            block = name.rpartition('.')[0]
            if is_frozen(attention):
                if attention.init_step is None and not attention.has_loaded:
                    frozen[block] = None
            elif any(map(_keeps_its_start, attention.modules())):
                unseen[block] = None
    if unseen:
        yield (
            f'The attentions of {shorten([*unseen])} ({len(unseen)} blocks) '
            f'have BNs that saw no data and stay in eval mode, so they '
            f'normalise by mean 0 and variance 1 for ever. This gives them '
            f'statistics before the training: {CALIBRATION}'
        )
    if frozen:
        yield (
            f'The attentions of {shorten([*frozen])} ({len(frozen)} blocks) '
            f'are frozen with their blocks and have no weights of a training, '
            f"so their step stays at the paper's start for ever; leave these "
            f'blocks out with blocks=, or freeze fewer stages'
        )


def _keeps_its_start(norm: nn.Module) -> bool:
    """Whether a module is a BN in eval mode that has seen no data."""
    return (
        isinstance(norm, _BatchNorm)
        and not norm.training
        and norm.num_batches_tracked is not None
        and int(norm.num_batches_tracked) == 0
    )
