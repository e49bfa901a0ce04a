from mmstepnet.compatibility import check_hosts

check_hosts('mmpretrain')

from mmstepnet import attentions, propagation  # noqa: E402
from mmstepnet.attentions import *  # noqa: E402, F403
from mmstepnet.propagation import *  # noqa: E402, F403
from mmstepnet.steps.residual import ResidualStep  # noqa: E402

from . import backbones  # noqa: E402
from .backbones import *  # noqa: E402, F403

__all__ = [
    'ResidualStep', *attentions.__all__, *backbones.__all__,
    *propagation.__all__
]
