"""Folding for inference: norms into convolutions, adaptors into a line."""

import copy

import torch
import torch.nn as nn
from torch import Tensor
from torch.nn.utils.fusion import fuse_conv_bn_eval

from mmstepnet.attentions import ChannelGate, StepNet

from .residual import ResidualStep

# Exactly these: a subclass may do more, as IEBN and weight standardisation.
CONVS = (nn.Conv2d, )
NORMS = (nn.BatchNorm2d, nn.SyncBatchNorm)

PAIR_WEIGHTS = {  # of (GAP(x), GAP(f)), from the weights of StepNet's inputs
    'both': lambda w: (w[:, 0] + w[:, 1], w[:, 1]),
    'x': lambda w: (w[:, 0], None),
    'x_next': lambda w: (w[:, 0], w[:, 0]),
    'difference': lambda w: (None, w[:, 0]),
}


class FoldedStepNet(ChannelGate):
    r"""StepNet's adaptor with frozen statistics, three numbers a channel.

    .. math::
        \Delta t = s\, \sigma(a\, \mathrm{GAP}(x_t) + b\, \mathrm{GAP}(f)
        + c)

    Args:
        adaptor (StepNet): The adaptor to take the place of. Its BN's running
            statistics are used, whatever mode it is in.
    """

    def __init__(self, adaptor: StepNet):
        super().__init__(adaptor.channels, adaptor.init_step)
        self.pooled = adaptor.pooled
        self.scale = adaptor.scale
        with torch.no_grad():
            slope, offset = adaptor.ie_weight, adaptor.ie_bias
            if not isinstance(adaptor.bn, nn.Identity):
                bn = adaptor.bn
                deviation = (bn.running_var + bn.eps).sqrt()
                offset = offset + slope * (
                    bn.bias - bn.running_mean * bn.weight / deviation)
                slope = slope * bn.weight / deviation
            weights = PAIR_WEIGHTS[adaptor.inputs](adaptor.pair_weight)
            for name, weight in zip(('x_weight', 'f_weight'), weights):
                if weight is not None:
                    weight = nn.Parameter(slope * weight)
                self.register_parameter(name, weight)
            self.offset = nn.Parameter(offset.clone())

    def init_weights(self) -> None:
        """Keep the weights: a folded model is not initialised."""

    def forward(self, *means: Tensor) -> Tensor:
        """Choose the step, (N, C), from what :attr:`pooled` names."""
        weights = [w for w in (self.x_weight, self.f_weight) if w is not None]
        total = self.offset
        for weight, mean in zip(weights, means):
            total = total + weight * mean.to(weight.dtype)
        return torch.sigmoid(total) * self.scale


def fold(model: nn.Module) -> nn.Module:
    """Fold a model for inference; the outputs stay the same.

    Each convolution takes in the BN behind it, and each StepNet adaptor
    becomes :class:`FoldedStepNet`. The result runs and exports as any module;
    it cannot be trained on. What cannot be folded exactly (IEBN, GroupNorm,
    other attentions, a BN without running statistics) stays as it is.

    Which BN stands right behind which convolution is known of an
    ``nn.Sequential``, of MMCV's ``ConvModule``, and of a module that says it:
    its ``conv_norm_pairs()`` returns their names in pairs, as the blocks and
    the backbones of this package do.

    Args:
        model (nn.Module): A model with residual steps, such as a backbone of
            this package or a classifier or detector that has one. It is left
            as it was.

    Returns:
        nn.Module: A folded copy, in eval mode.

    Raises:
        TypeError: There is no :class:`ResidualStep` in ``model``.
    """
    if not any(isinstance(m, ResidualStep) for m in model.modules()):
        raise TypeError(
            'fold expects a model with residual steps, such as StepResNet, '
            f'got {type(model).__name__}; for other models see '
            'torch.nn.utils.fuse_conv_bn_eval')
    model = copy.deepcopy(model).eval()
    for module in list(model.modules()):
        for conv, norm in _pairs(module):
            _fold_norm(module, conv, norm)
        attention = getattr(module, 'attention', None)
        if isinstance(attention, StepNet):
            module.attention = FoldedStepNet(attention)
    return model.eval()


def _pairs(module: nn.Module) -> list[tuple[str, str]]:
    """Names of the convolutions and of the norms right behind them."""
    if hasattr(module, 'conv_norm_pairs'):
        return module.conv_norm_pairs()
    if getattr(module, 'order', ())[:2] == ('conv', 'norm'):  # ConvModule
        return [('conv', module.norm_name)] if module.with_norm else []
    if isinstance(module, nn.Sequential):
        names = list(module._modules)
        return list(zip(names, names[1:]))
    return []


def _fold_norm(owner: nn.Module, conv_name: str, norm_name: str) -> None:
    conv, norm = getattr(owner, conv_name), getattr(owner, norm_name)
    if (type(conv) in CONVS and type(norm) in NORMS
            and norm.running_mean is not None):
        setattr(owner, conv_name, fuse_conv_bn_eval(conv, norm))
        setattr(owner, norm_name, nn.Identity())
