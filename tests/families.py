"""Small models of each family, by library: builder, input and blocks."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

import pytest
import torch
import torch.nn as nn
from torch import Tensor

QUICK = (
    'ResNet, basic',
    'ResNet, frozen norms',
    'ConvNeXt',
    'ViT',
    'Swin',
    'mmpretrain ResNet-18',
    'mmpretrain ConvNeXt',
    'mmpretrain ViT',
    'mmdet ResNet-50, DCN',
    'mmseg ResNet-50, plugins, dilated',
    'mmdet CSPNeXt',
    'DETR, backbone',
    'CaiT',
    'DINOv2',
)
"""Families that every run of the tests builds; the others are slow."""


@dataclass(frozen=True)
class Family:
    """One family of models.

    Attributes:
        build (Callable): Builds a small model.
        blocks (int): How many blocks are to get steps.
        inputs (Callable): Gives its input.
        options (dict): Of :func:`insert_steps`.
        recorded (bool): Whether stiffness of the network as it is equals that
            with plain steps: not where the host has a gate of its own, which
            the recorder takes for Δt, nor without second blocks.
    """

    build: Callable[[], nn.Module]
    blocks: int
    inputs: Callable[[], Tensor | dict] = lambda: images(64)
    options: tuple = ()
    recorded: bool = True


def images(size: int) -> Tensor:
    """Two random images."""
    generator = torch.Generator().manual_seed(0)
    return torch.rand(2, 3, size, size, generator=generator)


def torchvision_families() -> dict[str, Family]:
    """Families of torchvision."""
    import torchvision.models as tv
    from torchvision.models.convnext import CNBlockConfig
    from torchvision.models.regnet import BlockParams, RegNet
    from torchvision.models.resnet import BasicBlock, Bottleneck
    from torchvision.ops import FrozenBatchNorm2d

    def resnet(block=Bottleneck, layers=(2, 1, 2, 1), **kwargs):
        return lambda: tv.ResNet(block, layers, num_classes=5, **kwargs)

    def convnext():
        return tv.ConvNeXt(
            [CNBlockConfig(16, 32, 2), CNBlockConfig(32, None, 1)],
            stochastic_depth_prob=0.5,
            num_classes=5,
        )

    return {
        'ResNet, basic': Family(resnet(BasicBlock), 3),
        'ResNet, bottleneck': Family(
            resnet(), 6, options=(('first_block', True),)
        ),
        'ResNet, frozen norms': Family(
            resnet(BasicBlock, norm_layer=FrozenBatchNorm2d), 3
        ),
        'RegNet': Family(
            lambda: RegNet(
                BlockParams(
                    [2, 2], [16, 32], [8, 8], [1.0, 1.0], [2, 2], 0.25
                ),
                num_classes=5,
            ),
            2,
        ),
        'ConvNeXt': Family(convnext, 3),
        'ViT': Family(
            lambda: tv.VisionTransformer(32, 8, 2, 4, 32, 64, num_classes=5),
            2,
            lambda: images(32),
        ),
        'Swin': Family(
            lambda: tv.SwinTransformer(
                [4, 4],
                16,
                [2, 1],
                [2, 4],
                [7, 7],
                stochastic_depth_prob=0.5,
                num_classes=5,
            ),
            3,
        ),
        'MobileNetV3': Family(
            lambda: tv.mobilenet_v3_small(
                num_classes=5, width_mult=0.25, dropout=0.0
            ),
            7,
        ),
    }


def timm_families() -> dict[str, Family]:
    """Families of timm."""
    import timm
    from timm.models.convnext import ConvNeXt
    from timm.models.res2net import Bottle2neck
    from timm.models.resnet import BasicBlock, Bottleneck, ResNet
    from timm.models.swin_transformer import SwinTransformer
    from timm.models.vision_transformer import VisionTransformer

    def resnet(block=Bottleneck, **kwargs):
        return lambda: ResNet(block, [2, 1, 2, 1], num_classes=5, **kwargs)

    def create(name, **kwargs):
        return lambda: timm.create_model(name, num_classes=5, **kwargs)

    tokens = dict(inputs=lambda: images(32))
    return {
        'ResNet, basic': Family(resnet(BasicBlock, drop_path_rate=0.2), 3),
        'ResNet-D, anti-aliased, SE': Family(
            resnet(
                stem_type='deep',
                avg_down=True,
                block_args=dict(attn_layer='se'),
                stem_width=32,
            ),
            2,
            recorded=False,
        ),
        'Res2Net': Family(
            resnet(Bottle2neck, base_width=26, block_args=dict(scale=4)), 2
        ),
        'ConvNeXt': Family(
            lambda: ConvNeXt(
                depths=(2, 1, 1, 1),
                dims=(16, 24, 32, 40),
                num_classes=5,
                drop_path_rate=0.5,
            ),
            5,
        ),
        'ViT': Family(
            lambda: VisionTransformer(
                32,
                8,
                num_classes=5,
                embed_dim=32,
                depth=2,
                num_heads=4,
                drop_path_rate=0.5,
            ),
            2,
            **tokens,
        ),
        'Swin': Family(
            lambda: SwinTransformer(
                img_size=56,
                patch_size=4,
                embed_dim=16,
                depths=(2, 1),
                num_heads=(2, 4),
                window_size=7,
                num_classes=5,
                drop_path_rate=0.5,
            ),
            3,
            lambda: images(56),
        ),
        'EfficientNet': Family(
            create('efficientnet_b0', drop_path_rate=0.2), 9
        ),
        'HRNet': Family(create('hrnet_w18_small'), 18, recorded=False),
        'CaiT': Family(
            create(
                'cait_xxs24_224',
                img_size=32,
                depth=2,
                num_heads=4,
                embed_dim=32,
                drop_path_rate=0.5,
            ),
            4,
            **tokens,
            options=(('example', images(32)),),
        ),
        'CoaT': Family(
            create('coat_lite_tiny', img_size=64, drop_path_rate=0.2),
            8,
            options=(('example', images(64)),),
        ),
        'EfficientViT': Family(create('efficientvit_b0'), 7),
    }


def openmmlab_families() -> dict[str, Family]:
    """Families of MMPretrain, MMDetection and MMSegmentation.

    Names begin with the package's, which is imported by ``build``.
    """
    # Two stages: 3 and 4 bottlenecks, of which the first ones project.
    small = dict(
        base_channels=8,
        stem_channels=8,
        num_stages=2,
        strides=(1, 2),
        dilations=(1, 1),
        out_indices=(0, 1),
    )
    plugins = [
        dict(
            cfg=dict(type='ContextBlock', ratio=1 / 4, postfix=k),
            stages=(True, True),
            position=f'after_conv{k}',
        )
        for k in (1, 2, 3)
    ]
    dcn = dict(
        dcn=dict(type='DCN', deform_groups=1, fallback_on_stride=False),
        stage_with_dcn=(False, True),
    )
    vit = dict(
        arch=dict(
            embed_dims=32, num_layers=2, num_heads=4, feedforward_channels=64
        ),
        img_size=32,
        patch_size=8,
    )
    swin = dict(embed_dims=16, depths=(2, 1), num_heads=(2, 4))
    convnext = dict(
        arch=dict(depths=[2, 1], channels=[16, 24]), out_indices=(1,)
    )

    def of(name, *args, **kwargs):
        package, cls = name.split('.')
        return lambda: getattr(
            import_module(f'{package}.models.backbones'), cls
        )(*args, **kwargs)

    tokens = dict(inputs=lambda: images(32))
    return {
        'mmpretrain ResNet-50, checkpointed': Family(
            of('mmpretrain.ResNet', 50, with_cp=True, **small),
            7,
            options=(('first_block', True),),
        ),
        'mmpretrain SEResNet-50': Family(
            of('mmpretrain.SEResNet', 50, **small), 5, recorded=False
        ),
        'mmpretrain ResNet-18': Family(
            of('mmpretrain.ResNet', 18, **small), 3
        ),
        'mmpretrain ConvNeXt': Family(
            of('mmpretrain.ConvNeXt', drop_path_rate=0.5, **convnext), 3
        ),
        'mmpretrain ViT': Family(
            of('mmpretrain.VisionTransformer', **vit), 2, **tokens
        ),
        'mmpretrain ViT, SwiGLU, layer scale': Family(
            of(
                'mmpretrain.VisionTransformer',
                drop_path_rate=0.5,
                layer_cfgs=dict(ffn_type='swiglu_fused'),
                layer_scale_init_value=0.1,
                **vit,
            ),
            2,
            **tokens,
        ),
        'mmpretrain Swin, checkpointed': Family(
            of(
                'mmpretrain.SwinTransformer',
                swin,
                img_size=56,
                with_cp=True,
                drop_path_rate=0.5,
                out_indices=(1,),
            ),
            3,
            lambda: images(56),
        ),
        'mmpretrain EfficientNet': Family(
            of('mmpretrain.EfficientNet', 'b0', drop_path_rate=0.2), 9
        ),
        'mmdet ResNet-50, frozen, norms in eval mode': Family(
            of('mmdet.ResNet', 50, frozen_stages=1, **small),
            3,
            options=(('blocks', 'layer2'),),
        ),
        'mmdet ResNet-50, DCN': Family(
            of('mmdet.ResNet', 50, **dcn, **small), 5
        ),
        'mmdet CSPNeXt': Family(
            of('mmdet.CSPNeXt', deepen_factor=0.33, widen_factor=0.125), 5
        ),
        'mmdet MobileNetV2': Family(of('mmdet.MobileNetV2', 0.25), 11),
        'mmdet ResNeSt-50': Family(of('mmdet.ResNeSt', 50, **small), 5),
        'mmseg ResNet-50, plugins, dilated': Family(
            of(
                'mmseg.ResNet',
                50,
                plugins=plugins,
                contract_dilation=True,
                **{**small, 'strides': (1, 1), 'dilations': (1, 2)},
            ),
            5,
        ),
    }


def transformers_families() -> dict[str, Family]:
    """Families of Hugging Face's transformers, from configs alone."""
    import transformers as hf

    def of(name, **config):
        return lambda: getattr(hf, f'{name}Model')(
            getattr(hf, f'{name}Config')(**config)
        )

    def pixels(size):
        return lambda: dict(pixel_values=images(size))

    maps = dict(embedding_size=16, hidden_sizes=[16, 32], depths=[2, 1])
    tokens = dict(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=32,
        patch_size=8,
    )
    resnet = hf.ResNetConfig(
        **maps, layer_type='basic', out_features=['stage2']
    )
    detr = dict(
        backbone_config=resnet,
        d_model=32,
        encoder_layers=2,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        num_queries=5,
    )
    return {
        'ResNet, bottleneck': Family(of('ResNet', **maps), 2, pixels(64)),
        'ConvNeXt': Family(
            of(
                'ConvNext',
                hidden_sizes=[16, 24, 32, 40],
                depths=[2, 1, 1, 1],
                drop_path_rate=0.5,
            ),
            5,
            pixels(64),
        ),
        'ViT': Family(
            of('ViT', intermediate_size=64, **tokens), 2, pixels(32)
        ),
        'DINOv2': Family(
            of('Dinov2', drop_path_rate=0.5, **tokens), 2, pixels(32)
        ),
        'Swin': Family(
            of(
                'Swin',
                image_size=32,
                patch_size=2,
                embed_dim=16,
                depths=[2, 2],
                num_heads=[2, 4],
                window_size=4,
                drop_path_rate=0.5,
            ),
            4,
            pixels(32),
        ),
        'DETR, backbone': Family(of('Detr', **detr), 2, pixels(64)),
    }


LIBRARIES = dict(
    torchvision=torchvision_families,
    timm=timm_families,
    transformers=transformers_families,
    mmpretrain=openmmlab_families,
)


def find_family(library: str, name: str) -> Family:
    """A family; a test of one whose library is missing is skipped."""
    pytest.importorskip(library)
    if library == 'mmpretrain':  # and MMDetection or MMSegmentation
        pytest.importorskip(name.split()[0])
    return LIBRARIES[library]()[name]


def family_cases() -> list:
    """A library that is there and each family of it, as cases of a test."""
    return [
        pytest.param(
            library, name, marks=() if name in QUICK else pytest.mark.slow
        )
        for library, families in LIBRARIES.items()
        if find_spec(library)
        for name in families()
    ]
