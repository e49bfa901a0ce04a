"""The hosts' backbones with steps: found by scope, initialised, frozen."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn as nn
from mmengine.registry import DefaultScope

from mmstepnet.attentions.base import is_frozen
from mmstepnet.checks import check_config
from mmstepnet.compatibility import VERSIONS, check_hosts
from mmstepnet.generated import Generated, generated_class
from mmstepnet.messages import warn
from mmstepnet.registry import MODELS
from mmstepnet.steps import ResidualStep, insert_steps
from mmstepnet.steps.modules import steps_of

STEPNET = dict(type='StepNet')


def find_host(name: str, host: str | None = None) -> type:
    """Find a host's class.

    Args:
        name (str): Name that the host has registered it by.
        host (str, optional): Scope of the host, such as ``'mmdet'``. None is
            the default scope. Defaults to None.

    Raises:
        ValueError: There is no default scope and no ``host``, or that host
            has no such class.
        ImportError: The host is not installed, or in a version that this
            package does not know.
    """
    current = DefaultScope.get_current_instance()
    scope = host or (current.scope_name if current else None)
    if scope in VERSIONS:
        check_hosts(scope)
    try:
        found = MODELS.get(f'{scope}.{name}')
    except RuntimeError:  # what mmengine raises where there is none
        found = None
    if found is None:
        raise ValueError(
            f"whose {name}? The hosts' defaults differ, so name one, as in "
            f"host='mmpretrain' or host='mmdet', or build it in the scope of "
            f'one, as configs with a default_scope do; got host={host!r}, and '
            f'the default scope is {current and current.scope_name!r}'
        )
    return found


class SteppedBackbone(Generated):
    """A host's backbone whose residual blocks take steps."""

    @classmethod
    def _named_over(cls, host: type) -> tuple[str, dict]:
        """Keep the name of a class of ours."""
        if cls is not SteppedBackbone:
            return cls.__name__, {}
        # Hosts ask for it; MMPretrain's Swin, to convert old checkpoints.
        return f'Step{host.__name__}', dict(
            __class__=property(lambda self: host)
        )

    def init_weights(self) -> None:
        """Initialise as the host does; bring the attentions to their start.

        A host's initialisation would move them from there, as Kaiming's does
        with convolutions. A checkpoint that it loads may hold them. So each
        is brought to its start when loading begins, or at the end.
        """
        initialise = getattr(super(), 'init_weights', lambda: None)
        waiting = (
            []
            if getattr(self, 'is_init', False)
            else [
                step.attention
                for step in self.modules()
                if isinstance(step, ResidualStep)
                and hasattr(step.attention, 'init_weights')
            ]
        )

        def start(attention: nn.Module, *args) -> None:
            if attention in waiting:
                waiting.remove(attention)
                attention.init_weights()

        handles = [
            attention._register_load_state_dict_pre_hook(
                start, with_module=True
            )
            for attention in waiting
        ]
        initialise()
        for handle in handles:
            handle.remove()
        for attention in list(waiting):
            start(attention)

    def train(self, mode: bool = True) -> nn.Module:
        """Set the mode as the host does, whose method may return None."""
        super().train(mode)
        return self

    def _insert(self, attention: dict, **options: Any) -> None:
        """Put the attention in; frozen stages freeze theirs, too."""
        check_config('attention', attention, "dict(type='StepNet')")
        arguments = dict(attention)
        insert_steps(self, arguments.pop('type'), **options, **arguments)
        for step in self.modules():
            if isinstance(step, ResidualStep):
                step.is_init = True  # init_weights above sees to it
        self.train(self.training)  # where many hosts freeze
        for block in self.modules():
            if steps_of(block):
                _freeze_as_the_block(block)
        warn_of_frozen_starts(self)


def _freeze_as_the_block(block: nn.Module) -> None:
    """Freeze the attentions of a block whose other parameters are frozen."""
    ours, theirs = [], []
    for name, p in block.named_parameters():
        (ours if 'step.attention.' in name else theirs).append(p)
    if theirs and not any(p.requires_grad for p in theirs):
        for p in ours:
            p.requires_grad_(False)


@MODELS.register_module()
def StepBackbone(  # noqa: N802, a type in configs
    backbone: dict,
    attention: dict = STEPNET,
    blocks: Sequence[str] | str | None = None,
    first_block: bool | None = None,
    example: Sequence[int] | None = None,
    layout: str | None = None,
    pretrained: str | None = None,
) -> nn.Module:
    """Build a host's backbone and put an attention into its blocks.

    :func:`mmstepnet.insert_steps` for configs. What comes back is the host's
    own object, an instance of the host's class; keys of checkpoints stay, and
    ``*step.attention.*`` comes on top.

    Args:
        backbone (dict): Config of any registered backbone. Its type is
            looked for in the default scope, or in that of its prefix, as in
            ``'mmdet.ResNet'``.
        attention (dict, optional): Config of an attention. As in
            :func:`insert_steps`, and other than in :class:`StepResNet`,
            ``init_step`` is 1.0 where it is not given, so that the backbone
            computes what it did before; ``init_step=None`` is the paper's
            gate. Defaults to ``dict(type='StepNet')``.
        blocks (Sequence[str] | str, optional): See :func:`insert_steps`.
        first_block (bool, optional): See :func:`insert_steps`.
        example (Sequence[int], optional): Shape of what the backbone is
            called with, such as (1, 27, 17, 3). None guesses images, clips
            or sequences.
        layout (str, optional): See :func:`insert_steps`.
        pretrained (str, optional): The ``pretrained`` of ``backbone``.
            Models that have this argument, as MMSegmentation's, hand it to
            their backbone. Defaults to None.

    Returns:
        nn.Module: The backbone.

    Raises:
        KeyError: The backbone or the attention is not registered.
        ValueError: No block can take steps, or one of ``blocks`` does not
            exist.

    Example:
        >>> from mmstepnet.models import StepBackbone
        >>> model = StepBackbone(
        ...     dict(type='mmpretrain.SEResNet', depth=50),
        ...     attention=dict(type='StepNet'), blocks='layer4')
        >>> model.layer4[1].step.attention
        StepNet(channels=2048, init_step=1.0)
    """
    if pretrained is not None:
        backbone = dict(backbone, pretrained=pretrained)
    model = MODELS.build(backbone)
    if not isinstance(model, SteppedBackbone):
        model.__class__ = generated_class(SteppedBackbone, type(model))
    model._insert(
        attention,
        blocks=blocks,
        first_block=first_block,
        layout=layout,
        example=None if example is None else torch.zeros(tuple(example)),
    )
    return model


def warn_of_frozen_starts(backbone: nn.Module) -> None:
    """Warn of attentions with ``init_step`` whose parameters are frozen.

    Args:
        backbone (nn.Module): A backbone whose stages are frozen already.
    """
    names = [
        name.rpartition('.')[0]
        for name, module in backbone.named_modules()
        if isinstance(module, ResidualStep)
        and getattr(module.attention, 'init_step', None) is not None
        and is_frozen(module.attention)
    ]
    if names:
        warn(
            f'{type(backbone).__name__}: the attentions of '
            f'{", ".join(names)} are frozen with their blocks, so their step '
            'stays at their init_step for ever; leave these blocks out with '
            'blocks=, or freeze fewer stages'
        )
