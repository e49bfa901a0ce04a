"""Backbones of OpenMMLab with an attention in their residual steps.

For whoever writes configs: ``type='mmstepnet.StepResNet'`` or
``'mmstepnet.StepBackbone'`` in any host's config.
"""

from mmstepnet.compatibility import check_hosts

check_hosts('mmengine', 'mmcv')

from mmstepnet import attentions, propagation  # noqa: E402
from mmstepnet.attentions import *  # noqa: E402, F403
from mmstepnet.propagation import *  # noqa: E402, F403
from mmstepnet.registry import MODELS  # noqa: E402
from mmstepnet.steps import ResidualStep  # noqa: E402

from . import backbones  # noqa: E402
from .backbones import *  # noqa: E402, F403

MODELS.register_module(module=attentions.IEBN)

__all__ = [
    'ResidualStep', *attentions.__all__, *backbones.__all__,
    *propagation.__all__
]
