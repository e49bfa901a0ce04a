"""Backbones of OpenMMLab with an attention in their residual steps.

For whoever writes configs: ``type='mmstepnet.StepResNet'`` or
``'mmstepnet.StepBackbone'`` in any host's config.
"""

from mmstepnet.compatibility import check_hosts

check_hosts('mmengine', 'mmcv')

from mmstepnet.attentions import IEBN  # noqa: E402
from mmstepnet.registry import MODELS  # noqa: E402

from . import backbones  # noqa: E402
from .backbones import *  # noqa: E402, F403

MODELS.register_module(module=IEBN)

__all__ = backbones.__all__
