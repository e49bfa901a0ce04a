"""Training the steps of a network alone."""

from collections.abc import Iterable
from typing import Any

import torch.nn as nn

from mmstepnet.generated import Generated, generated_class

from .modules import find_modules_to_save, modules_by_name
from .residual import ResidualStep


class KeepsStatistics(Generated):
    """A module with running statistics that stays in eval mode."""

    @classmethod
    def _named_over(cls, host: type) -> tuple[str, dict[str, Any]]:
        """Lie in the host's module: torch.fx leaves torch.nn as it is."""
        return host.__name__, dict(__module__=host.__module__)

    def train(self, mode: bool = True) -> nn.Module:
        """Set the mode of its children alone."""
        super().train(mode)
        self.training = False
        return self


def mark_only_steps_as_trainable(
    model: nn.Module,
    modules_to_save: Iterable[str] = (),
    *,
    unfreeze: bool = False,
) -> int:
    """Freeze all of a model but its steps.

    Parameters elsewhere require no gradient any more. Modules elsewhere that
    keep numbers of their own in the state dict, such as running statistics,
    stay in eval mode, also when a trainer calls ``model.train()``, unless they
    hold steps, as a model with the mean of its images does. Call it
    before the optimizer is built and before ``DistributedDataParallel`` or
    FSDP; where BNs are converted to SyncBN, call it after that.

    Args:
        model (nn.Module): A model with steps.
        modules_to_save (Iterable[str]): Names of further modules that are
            trained, such as a new head; give them to
            :func:`mmstepnet.save_steps`, too. Defaults to none.
        unfreeze (bool): Undo it: all parameters require a gradient, and all
            modules follow ``train()`` again, also where the steps are gone.
            Defaults to False.

    Returns:
        int: Number of parameters that require a gradient.

    Raises:
        TypeError: ``modules_to_save`` is no list of names.
        ValueError: The model has no steps, or one of ``modules_to_save`` does
            not exist.

    Example:
        >>> from torchvision.models import resnet18
        >>> import mmstepnet
        >>> model = resnet18()
        >>> names = mmstepnet.insert_steps(model)
        >>> mmstepnet.mark_only_steps_as_trainable(model, ['fc'])
        520744
    """
    modules = modules_by_name(model)
    gates = [
        m.attention
        for m in modules.values()
        if isinstance(m, ResidualStep) and m.attention is not None
    ]
    if not gates and not unfreeze:
        raise ValueError(
            f'{type(modules[""]).__name__} has no steps that '
            f'could be trained; call insert_steps first'
        )
    trained = [
        *find_modules_to_save(modules, modules_to_save).values(),
        *gates,
    ]
    inside: set[nn.Module] = set()
    learning: set[nn.Parameter] = set()
    for module in trained:
        inside.update(module.modules())
        learning.update(module.parameters())
    for name, module in modules.items():
        if name.endswith('.original_module'):  # peft runs a copy of it
            learning.difference_update(module.parameters())
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.requires_grad_(unfreeze or parameter in learning)
    follow_training(m for m in model.modules() if unfreeze or m in inside)
    for module in () if unfreeze else list(model.modules()):
        if (
            module not in inside
            and _keeps_numbers(module)
            and not isinstance(module, KeepsStatistics)
            and not any(isinstance(m, ResidualStep) for m in module.modules())
        ):
            kept_class: Any = generated_class(KeepsStatistics, type(module))
            module.__class__ = kept_class
            module.eval()
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def _keeps_numbers(module: nn.Module) -> bool:
    """Whether a module may change, in training, what its state dict holds."""
    return any(
        t is not None
        and t.is_floating_point()
        and name not in module._non_persistent_buffers_set
        for name, t in module._buffers.items()
    )


def follow_training(modules: Iterable[nn.Module]) -> None:
    """Let modules that stay in eval mode follow ``train()`` again."""
    for module in modules:
        if isinstance(module, KeepsStatistics):
            module.__class__ = module.host
