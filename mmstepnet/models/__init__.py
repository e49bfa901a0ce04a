from mmstepnet.compatibility import check_hosts

check_hosts('mmpretrain')

from . import attentions, backbones, propagation, translation  # noqa: E402
from .attentions import *  # noqa: E402, F403
from .backbones import *  # noqa: E402, F403
from .propagation import *  # noqa: E402, F403
from .residual import ResidualStep  # noqa: E402
from .translation import *  # noqa: E402, F403

__all__ = [
    'ResidualStep', *attentions.__all__, *backbones.__all__,
    *propagation.__all__, *translation.__all__
]
