"""Rules that choose the residual step, one paper a file.

For whoever reads, compares or invents an attention. The states of a step go
in, as pooled vectors (a channel gate) or as maps (a map attention); Δt comes
out, broadcastable to f. On PyTorch alone.
"""

from .base import (
    ATTENTIONS,
    Attention,
    ChannelGate,
    MapAttention,
    build_attention,
    choose_step,
    normalise,
)
from .cbam import CBAM
from .eca import ECA
from .fca import FCA
from .iebn import IEBN
from .layer_scale import LayerScale
from .ours import (
    OursDepthwiseConv,
    OursMeanStd,
    OursNoNorm,
    OursNormFirst,
    OursSharedMLP,
)
from .plain import Plain
from .se import SE
from .sem import SEM
from .sge import SGE
from .srm import SRM
from .stepnet import FoldedStepNet, StepNet
from .zero_start import ZeroStart

__all__ = [
    'ATTENTIONS',
    'CBAM',
    'ECA',
    'FCA',
    'IEBN',
    'SE',
    'SEM',
    'SGE',
    'SRM',
    'Attention',
    'ChannelGate',
    'FoldedStepNet',
    'LayerScale',
    'MapAttention',
    'OursDepthwiseConv',
    'OursMeanStd',
    'OursNoNorm',
    'OursNormFirst',
    'OursSharedMLP',
    'Plain',
    'StepNet',
    'ZeroStart',
    'build_attention',
    'choose_step',
    'normalise',
]
