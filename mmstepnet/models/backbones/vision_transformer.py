"""Vision Transformer whose attention modules are replaced by a step."""

import torch.nn as nn
from mmengine.model import BaseModule
from mmpretrain.models.backbones import VisionTransformer
from mmpretrain.models.backbones.vision_transformer import (
    TransformerEncoderLayer,
)
from mmpretrain.models.utils import MultiheadAttention
from torch import Tensor

from mmstepnet.attentions import build_attention
from mmstepnet.registry import MODELS
from mmstepnet.steps import ResidualStep
from mmstepnet.steps.insert import log_new

from .host import STEPNET, warn_of_frozen_starts
from .host_attention import HostAttention


class ValueProjection(HostAttention):
    """Self-attention without its attention values.

    The value and the output projection, token by token; query and key are
    gone.

    Args:
        host (MultiheadAttention): The module to take the place of. Its output
            projection, dropout and layer scale are taken over.

    Raises:
        ValueError: The host drops attention weights, of which there are none.
    """

    def __init__(self, host: MultiheadAttention):
        super().__init__(host)
        self.value = nn.Linear(
            host.input_dims, host.embed_dims, bias=host.qkv.bias is not None
        )
        self.proj = host.proj

    def forward(self, x: Tensor) -> Tensor:
        """Project tokens, (N, L, C) -> (N, L, C)."""
        return self.gamma1(self.proj_drop(self.proj(self.value(x))))


class StepTransformerEncoderLayer(TransformerEncoderLayer):
    r"""Encoder layer of two residual steps.

    .. math::
        x' &= x + f(x) \otimes \Delta t, \qquad
        f = \mathrm{proj} \circ \mathrm{value} \circ \mathrm{LN} \\
        x'' &= x' + \mathrm{FFN}(\mathrm{LN}(x'))

    with :math:`\Delta t` from :math:`x` and :math:`f`, pooled over the tokens.

    Args:
        host (TransformerEncoderLayer): The layer to take the place of. All
            its parts but the attention are taken over.
        attention (dict, optional): Config of the step's attention; None is
            :math:`\Delta t = 1`.
    """

    def __init__(self, host: TransformerEncoderLayer, attention: dict | None):
        # The parent's constructor would build once more what the host has.
        BaseModule.__init__(self, host.init_cfg)
        self.embed_dims = host.embed_dims
        self.ln1 = host.ln1
        self.attn = ValueProjection(host.attn)
        self.step = ResidualStep(
            None
            if attention is None
            else build_attention(attention, host.embed_dims),
            drop_path=host.attn.out_drop,
        )
        self.ln2 = host.ln2
        self.ffn = host.ffn
        # The step adds the identity, behind the stochastic depth.
        self.ffn_step = ResidualStep(drop_path=self.ffn.dropout_layer)
        self.ffn.dropout_layer = nn.Identity()
        self.ffn.add_identity = False

    def forward(self, x: Tensor) -> Tensor:
        """Take both steps, (N, L, C) -> (N, L, C)."""
        x = _take_step(self.step, x, self.attn(self.ln1(x)))
        return _take_step(self.ffn_step, x, self.ffn(self.ln2(x)))


def _take_step(step: ResidualStep, x: Tensor, branch: Tensor) -> Tensor:
    """Show the step tokens (N, L, C) as maps (N, C, L, 1), without a copy."""
    out = step(x.transpose(1, 2)[..., None], branch.transpose(1, 2)[..., None])
    return out[..., 0].transpose(1, 2)


@MODELS.register_module()
class StepVisionTransformer(VisionTransformer):
    r"""ViT whose attention modules are replaced by StepNet (Table 7).

    A reading, not a fact: no code or setting of this experiment is public.
    The paper writes self-attention as :math:`x_t + f_3(x_t) \otimes
    F(f_1(x_t), f_2(x_t))` (Eq. 32), with the attention value F in the place
    of a step, and proposes "to directly replace the attention modules in ViT
    with StepNet".
    So the branch f is what multiplies the attention value, the value and the
    output projection behind the layer norm, and StepNet's step, from the
    tokens of x_t and of x_t + f pooled over all of them (class token
    included), takes the place of softmax(QK). One step a channel and image:
    the number of heads has no effect.

    Tokens then meet in the pooled states only. A class token, the host's
    default, sees the image through :math:`\Delta t` alone;
    ``out_type='avg_featmap'`` pools all patch tokens instead.

    Both residual sums of a layer, ``step`` and ``ffn_step``, are a
    :class:`ResidualStep`, so that stiffness is measured there. Checkpoints of
    the host load, their queries and keys left out.

    Args:
        arch (str | dict): See :class:`mmpretrain.models.VisionTransformer`.
            Defaults to 'base'.
        attention (dict, optional): Config of an attention; it is shown the
            tokens as a map of L x 1. None is :math:`\Delta t = 1`, which
            leaves the tokens apart altogether. Defaults to
            ``dict(type='StepNet')``.
        **kwargs: See :class:`mmpretrain.models.VisionTransformer`.

    Raises:
        KeyError: The attention is not registered.
        ValueError: ``layer_cfgs`` asks for dropout of attention weights, or
            the attention needs ``map_size``, as FCA does.

    Example:
        >>> import torch
        >>> from mmstepnet.models import StepVisionTransformer
        >>> model = StepVisionTransformer(
        ...     'deit-tiny', img_size=32, patch_size=4).eval()
        >>> [tuple(out.shape) for out in model(torch.rand(1, 3, 32, 32))]
        [(1, 192)]
    """

    def __init__(
        self,
        arch: str | dict = 'base',
        *,
        attention: dict | None = STEPNET,
        **kwargs,
    ):
        super().__init__(arch, **kwargs)
        for index, layer in enumerate(self.layers):
            self.layers[index] = StepTransformerEncoderLayer(layer, attention)
        if attention is not None:
            log_new(
                {
                    f'layers.{index}': [layer.step.attention]
                    for index, layer in enumerate(self.layers)
                },
                attention.get('init_step'),
            )
        if self.frozen_stages > 0:
            self._freeze_stages()
            warn_of_frozen_starts(self)

    def train(self, mode: bool = True) -> 'StepVisionTransformer':
        """Set the mode; frozen layers stay in eval.

        The host freezes once, which does for layer norms; an attention's BN
        would go on collecting statistics.
        """
        super().train(mode)
        if self.frozen_stages > 0:
            self._freeze_stages()
        return self
