from mmstepnet.compatibility import check_hosts

check_hosts('mmpretrain')

from .attentions import *  # noqa: E402, F403
from .backbones import *  # noqa: E402, F403
from .residual import ResidualStep  # noqa: E402

__all__ = ['ResidualStep']
