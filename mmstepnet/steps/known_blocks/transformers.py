"""ConvNeXt and Transformers, whose blocks are two steps: attention, MLP."""

from functools import partial

import torch
import torch.nn as nn
from torch import Tensor

from .description import StepDescription
from .forwards import known

# --- ConvNeXt ----------------------------------------------------------------


def _timm_convnext(block: nn.Module, x: Tensor) -> Tensor:
    x = block.conv_dw(x)
    if block.use_conv_mlp:
        x = block.mlp(block.norm(x))
    else:
        x = block.mlp(block.norm(x.permute(0, 2, 3, 1))).permute(0, 3, 1, 2)
    return x if block.gamma is None else x * block.gamma.view(1, -1, 1, 1)


def _mm_convnext(block: nn.Module, x: Tensor) -> Tensor:
    last = block.linear_pw_conv
    data_format = 'channel_last' if last else 'channel_first'
    x = block.depthwise_conv(x)
    x = block.norm(x.permute(0, 2, 3, 1) if last else x,
                   data_format=data_format)
    x = block.act(block.pointwise_conv1(x))
    if block.grn is not None:
        x = block.grn(x, data_format=data_format)
    x = block.pointwise_conv2(x)
    x = x.permute(0, 3, 1, 2) if last else x
    return x if block.gamma is None else x * block.gamma.view(1, -1, 1, 1)


def _hf_convnext(block: nn.Module, x: Tensor) -> Tensor:
    x = block.layernorm(block.dwconv(x).permute(0, 2, 3, 1))
    x = block.pwconv2(block.act(block.pwconv1(x)))
    if block.layer_scale_parameter is not None:
        x = x * block.layer_scale_parameter
    return x.permute(0, 3, 1, 2)


known(
    'torchvision.models.convnext.CNBlock',
    StepDescription(
        lambda block, x: block.layer_scale * block.block(x),
        width=lambda block: block.layer_scale.shape[0],
        drop_path='stochastic_depth'))
known(
    'timm.models.convnext.ConvNeXtBlock',
    StepDescription(
        _timm_convnext, width='mlp.fc2', identity='shortcut',
        drop_path='drop_path'))
known(
    'mmpretrain.models.backbones.convnext.ConvNeXtBlock',
    StepDescription(
        _mm_convnext, width='depthwise_conv', drop_path='drop_path'))
known(
    'transformers.models.convnext.modeling_convnext.ConvNextLayer',
    StepDescription(_hf_convnext, width='dwconv', drop_path='drop_path'))

# --- Transformers ------------------------------------------------------------


def register_encoder(name: str, attn: dict, mlp: dict, **common) -> None:
    """Describe a Transformer's block, whose states are tokens by default."""
    common = {'layout': 'NLC', **common}
    known(
        name,
        StepDescription(name='attn_step', **{**common, **attn}),
        StepDescription(name='mlp_step', **{**common, **mlp}))


def _torchvision_attn(block: nn.Module, x: Tensor) -> Tensor:
    y = block.ln_1(x)
    y, _ = block.self_attention(y, y, y, need_weights=False)
    return block.dropout(y)


register_encoder(
    'torchvision.models.vision_transformer.EncoderBlock',
    dict(branch=_torchvision_attn),
    dict(branch=lambda block, x: block.mlp(block.ln_2(x))),
    width='ln_1')
register_encoder(
    'torchvision.models.swin_transformer.SwinTransformerBlock',
    dict(branch=lambda block, x: block.attn(block.norm1(x))),
    dict(branch=lambda block, x: block.mlp(block.norm2(x))),
    width='norm1', layout='NHWC', drop_path='stochastic_depth')
register_encoder(
    'torchvision.models.swin_transformer.SwinTransformerBlockV2',
    dict(branch=lambda block, x: block.norm1(block.attn(x))),
    dict(branch=lambda block, x: block.norm2(block.mlp(x))),
    width='norm1', layout='NHWC', drop_path='stochastic_depth')


def _timm_attn(block: nn.Module, x: Tensor, *args, **kwargs) -> Tensor:
    # Versions differ in what else a block is given; all hand it on by name.
    return block.attn(
        x, **dict(zip(('attn_mask', 'is_causal'), args)), **kwargs)


def _eva_attn(block: nn.Module, x: Tensor, *args, **kwargs) -> Tensor:
    names = 'rope', 'attn_mask', 'is_causal'
    return block.attn(x, **dict(zip(names, args)), **kwargs)


def _eva_scaled_attn(block: nn.Module, x: Tensor, *args, **kwargs) -> Tensor:
    f = _eva_attn(block, block.norm1(x), *args, **kwargs)
    return f if block.gamma_1 is None else block.gamma_1 * f


def _eva_mlp(block: nn.Module, x: Tensor) -> Tensor:
    f = block.mlp(block.norm2(x))
    return f if block.gamma_2 is None else block.gamma_2 * f


register_encoder(
    'timm.models.vision_transformer.Block',
    dict(
        branch=lambda block, x, *args, **kwargs: block.ls1(
            _timm_attn(block, block.norm1(x), *args, **kwargs)),
        drop_path='drop_path1'),
    dict(
        branch=lambda block, x: block.ls2(block.mlp(block.norm2(x))),
        drop_path='drop_path2'),
    width='norm1')
register_encoder(
    'timm.models.vision_transformer.ResPostBlock',
    dict(
        branch=lambda block, x, *args, **kwargs: block.norm1(
            _timm_attn(block, x, *args, **kwargs)),
        drop_path='drop_path1'),
    dict(
        branch=lambda block, x: block.norm2(block.mlp(x)),
        drop_path='drop_path2'),
    width='norm1')
register_encoder(
    'timm.models.eva.EvaBlock',
    dict(branch=_eva_scaled_attn, drop_path='drop_path1'),
    dict(branch=_eva_mlp, drop_path='drop_path2'),
    width='norm1')
register_encoder(
    'timm.models.eva.EvaBlockPostNorm',
    dict(
        branch=lambda block, x, *args, **kwargs: block.norm1(
            _eva_attn(block, x, *args, **kwargs)),
        drop_path='drop_path1'),
    dict(
        branch=lambda block, x: block.norm2(block.mlp(x)),
        drop_path='drop_path2'),
    width='norm1')
register_encoder(
    'timm.models.swin_transformer.SwinTransformerBlock',
    dict(
        branch=lambda block, x: block._attn(block.norm1(x)),
        drop_path='drop_path1'),
    dict(
        branch=lambda block, x: block.mlp(
            block.norm2(x.flatten(1, 2))).view_as(x),
        drop_path='drop_path2'),
    width='norm1', layout='NHWC')
register_encoder(
    'timm.models.swin_transformer_v2.SwinTransformerV2Block',
    dict(
        branch=lambda block, x: block.norm1(block._attn(x)),
        drop_path='drop_path1'),
    dict(
        branch=lambda block, x: block.norm2(
            block.mlp(x.flatten(1, 2))).view_as(x),
        drop_path='drop_path2'),
    width='norm1', layout='NHWC')

# --- OpenMMLab, whose modules add the identity and drop paths themselves -----

MM_MLP = dict(
    drop_path='ffn.dropout_layer', switches={'ffn.add_identity': False})

register_encoder(
    'mmpretrain.models.backbones.vision_transformer.TransformerEncoderLayer',
    dict(
        branch=lambda block, x: block.attn(block.ln1(x)),
        drop_path='attn.out_drop'),
    dict(branch=lambda block, x: block.ffn(block.ln2(x)), **MM_MLP),
    width='ln1')
register_encoder(
    'mmseg.models.backbones.vit.TransformerEncoderLayer',
    dict(
        branch=lambda block, x: block.attn(block.norm1(x), identity=0.0),
        drop_path='attn.dropout_layer'),
    dict(branch=lambda block, x: block.ffn(block.norm2(x)), **MM_MLP),
    width='norm1')
for _name in ('mmpretrain.models.backbones.swin_transformer',
              'mmdet.models.backbones.swin', 'mmseg.models.backbones.swin'):
    register_encoder(
        f'{_name}.SwinBlock',
        dict(
            branch=lambda block, x, hw_shape: block.attn(
                block.norm1(x), hw_shape),
            drop_path='attn.drop'),
        dict(branch=lambda block, x: block.ffn(block.norm2(x)), **MM_MLP),
        width='norm1', map_shape=lambda hw_shape: hw_shape)

# --- Hugging Face ------------------------------------------------------------


def _vit_attn(block: nn.Module, x: Tensor, *args, **kwargs) -> Tensor:
    f, _ = block.attention(block.layernorm_before(x), *args, **kwargs)
    return block.dropout(f)


def _vit_mlp(block: nn.Module, x: Tensor) -> Tensor:
    return block.dropout(block.mlp(block.layernorm_after(x)))


def _dinov2_attn(block: nn.Module, x: Tensor, attention_mask=None,
                 **kwargs) -> Tensor:
    f, _ = block.attention(
        block.norm1(x), attention_mask=attention_mask, **kwargs)
    return block.layer_scale1(f)


def _dinov2_mlp(block: nn.Module, x: Tensor) -> Tensor:
    return block.layer_scale2(block.mlp(block.norm2(x)))


def _detr_attn(block: nn.Module, x: Tensor, attention_mask=None,
               spatial_position_embeddings=None, **kwargs) -> Tensor:
    f, _ = block.self_attn(
        hidden_states=x, attention_mask=attention_mask,
        position_embeddings=spatial_position_embeddings, **kwargs)
    return torch.dropout(f, block.dropout, block.training)


def _detr_out(block: nn.Module, x: Tensor) -> Tensor:
    x = block.final_layer_norm(x)
    if block.training:  # the host's guard against infinities in half precision
        limit = torch.finfo(x.dtype).max - 1000
        x = x.clamp(-limit, limit)
    return x


for _name in ('vit.modeling_vit.ViTLayer', 'deit.modeling_deit.DeiTLayer'):
    register_encoder(
        f'transformers.models.{_name}',
        dict(branch=_vit_attn),
        dict(branch=_vit_mlp),
        width='layernorm_before')
for _name in (
        'dinov2.modeling_dinov2.Dinov2Layer',
        'dinov2_with_registers.modeling_dinov2_with_registers.'
        'Dinov2WithRegistersLayer'):
    register_encoder(
        f'transformers.models.{_name}',
        dict(branch=_dinov2_attn),
        dict(branch=_dinov2_mlp),
        width='norm1', drop_path='drop_path')
register_encoder(
    'transformers.models.detr.modeling_detr.DetrEncoderLayer',
    dict(branch=_detr_attn, activation='self_attn_layer_norm'),
    dict(
        branch=lambda block, x: block.mlp(x),
        activation=lambda block: partial(_detr_out, block)),
    width='final_layer_norm')
