from .base import Attention, build_attention
from .cbam import CBAM
from .eca import ECA
from .fca import FCA
from .iebn import IEBN
from .ours import (
    OursDepthwiseConv,
    OursMeanStd,
    OursNoNorm,
    OursNormFirst,
    OursSharedMLP,
)
from .se import SE
from .sem import SEM
from .sge import SGE
from .srm import SRM
from .stepnet import StepNet

__all__ = [
    'CBAM', 'ECA', 'FCA', 'IEBN', 'SE', 'SEM', 'SGE', 'SRM', 'Attention',
    'OursDepthwiseConv', 'OursMeanStd', 'OursNoNorm', 'OursNormFirst',
    'OursSharedMLP', 'StepNet', 'build_attention'
]
