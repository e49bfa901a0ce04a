"""Small models of each family, by library: builder, input and blocks."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn as nn
from torch import Tensor


@dataclass(frozen=True)
class Family:
    """One family of models.

    Attributes:
        build (Callable): Builds a small model.
        blocks (int): How many blocks are to get steps.
        inputs (Callable): Gives its input.
        options (dict): Of :func:`insert_steps`.
    """

    build: Callable[[], nn.Module]
    blocks: int
    inputs: Callable[[], Tensor | dict] = lambda: images(64)
    options: tuple = ()


def images(size: int) -> Tensor:
    """Two random images."""
    generator = torch.Generator().manual_seed(0)
    return torch.rand(2, 3, size, size, generator=generator)


def torchvision_families() -> dict[str, Family]:
    """Families of torchvision."""
    import torchvision.models as tv
    from torchvision.models.convnext import CNBlockConfig
    from torchvision.models.efficientnet import FusedMBConvConfig, MBConvConfig
    from torchvision.models.regnet import BlockParams, RegNet
    from torchvision.models.resnet import BasicBlock, Bottleneck
    from torchvision.models.swin_transformer import (
        PatchMergingV2,
        SwinTransformerBlockV2,
    )

    def resnet(block=Bottleneck, layers=(2, 1, 2, 1), **kwargs):
        return lambda: tv.ResNet(block, layers, num_classes=5, **kwargs)

    def convnext():
        return tv.ConvNeXt(
            [CNBlockConfig(16, 32, 2), CNBlockConfig(32, None, 1)],
            stochastic_depth_prob=0.5, num_classes=5)

    def swin(**kwargs):
        return lambda: tv.SwinTransformer(
            [4, 4], 16, [2, 1], [2, 4], [7, 7], stochastic_depth_prob=0.5,
            num_classes=5, **kwargs)

    def efficientnet():
        return tv.EfficientNet(
            [FusedMBConvConfig(1, 3, 1, 16, 16, 2),
             FusedMBConvConfig(4, 3, 2, 16, 24, 2),
             MBConvConfig(4, 3, 2, 24, 32, 3)],
            dropout=0.0, stochastic_depth_prob=0.5, num_classes=5)

    def vit():
        model = tv.VisionTransformer(32, 8, 2, 4, 32, 64, num_classes=5)
        return model

    return {
        'ResNet, basic': Family(resnet(BasicBlock), 3),
        'ResNet, bottleneck': Family(
            resnet(), 6, options=(('first_block', True), )),
        'ResNeXt': Family(resnet(groups=4, width_per_group=8), 2),
        'WideResNet': Family(resnet(width_per_group=96), 2),
        'RegNet': Family(
            lambda: RegNet(
                BlockParams([2, 2], [16, 32], [8, 8], [1.0, 1.0], [2, 2], 0.25
                            ), num_classes=5), 2),
        'ConvNeXt': Family(convnext, 3),
        'ViT': Family(vit, 2, lambda: images(32)),
        'Swin': Family(swin(), 3),
        'Swin V2': Family(
            swin(block=SwinTransformerBlockV2,
                 downsample_layer=PatchMergingV2), 3),
        'MobileNetV2': Family(
            lambda: tv.MobileNetV2(
                5, 0.25, [[1, 16, 1, 1], [4, 24, 3, 2]], dropout=0.0), 3),
        'MobileNetV3': Family(
            lambda: tv.mobilenet_v3_small(
                num_classes=5, width_mult=0.25, dropout=0.0), 7),
        'EfficientNet': Family(efficientnet, 5),
    }


def timm_families() -> dict[str, Family]:
    """Families of timm."""
    import timm
    from timm.models.convnext import ConvNeXt
    from timm.models.eva import Eva
    from timm.models.res2net import Bottle2neck
    from timm.models.resnet import BasicBlock, Bottleneck, ResNet
    from timm.models.swin_transformer import SwinTransformer
    from timm.models.swin_transformer_v2 import SwinTransformerV2
    from timm.models.vision_transformer import ResPostBlock, VisionTransformer

    def resnet(block=Bottleneck, **kwargs):
        return lambda: ResNet(block, [2, 1, 2, 1], num_classes=5, **kwargs)

    def vit(**kwargs):
        return lambda: VisionTransformer(
            32, 8, num_classes=5, embed_dim=32, depth=2, num_heads=4,
            drop_path_rate=0.5, **kwargs)

    def eva(**kwargs):
        return lambda: Eva(
            32, 8, num_classes=5, embed_dim=32, depth=2, num_heads=4,
            drop_path_rate=0.5, init_values=0.1, **kwargs)

    def swin(cls, **kwargs):
        return lambda: cls(
            img_size=56, patch_size=4, embed_dim=16, depths=(2, 1),
            num_heads=(2, 4), window_size=7, num_classes=5,
            drop_path_rate=0.5, **kwargs)

    def create(name, **kwargs):
        return lambda: timm.create_model(name, num_classes=5, **kwargs)

    tokens = dict(inputs=lambda: images(32))
    return {
        'ResNet, basic': Family(resnet(BasicBlock, drop_path_rate=0.2), 3),
        'ResNet, bottleneck': Family(
            resnet(drop_path_rate=0.2), 6,
            options=(('first_block', True), )),
        'ResNet-D, anti-aliased, SE': Family(
            resnet(stem_type='deep', avg_down=True, block_args=dict(
                attn_layer='se'), stem_width=32), 2),
        'ResNeXt': Family(resnet(cardinality=4, base_width=8), 2),
        'ResNeSt': Family(create('resnest14d'), 3, options=(
            ('first_block', True), ('blocks', ('layer1', 'layer2', 'layer3')))
        ),
        'Res2Net': Family(
            resnet(Bottle2neck, base_width=26, block_args=dict(scale=4)), 2),
        'RegNet': Family(
            create('regnety_002', drop_path_rate=0.3), 9, lambda: images(32)),
        'ConvNeXt': Family(
            lambda: ConvNeXt(depths=(2, 1, 1, 1), dims=(16, 24, 32, 40),
                             num_classes=5, drop_path_rate=0.5), 5),
        'ConvNeXt, convolutional MLP': Family(
            lambda: ConvNeXt(depths=(1, 1, 1, 1), dims=(16, 24, 32, 40),
                             num_classes=5, conv_mlp=True), 4),
        'ViT': Family(vit(), 2, **tokens),
        'DeiT III': Family(
            vit(init_values=0.1, no_embed_class=True), 2, **tokens),
        'ViT, post-norm': Family(vit(block_fn=ResPostBlock), 2, **tokens),
        'EVA': Family(eva(), 2, **tokens),
        'EVA-02': Family(
            eva(swiglu_mlp=True, use_rot_pos_emb=True, qkv_fused=False), 2,
            **tokens),
        'EVA, post-norm': Family(eva(use_post_norm=True), 2, **tokens),
        'Swin': Family(swin(SwinTransformer), 3, lambda: images(56)),
        'Swin V2': Family(swin(SwinTransformerV2), 3, lambda: images(56)),
        'EfficientNet': Family(
            create('efficientnet_b0', drop_path_rate=0.2), 9),
        'EfficientNetV2': Family(
            create('efficientnetv2_rw_t', drop_path_rate=0.2), 34,
            lambda: images(32)),
        'MobileNetV2': Family(create('mobilenetv2_035'), 10),
        'MobileNetV3': Family(create('mobilenetv3_small_050'), 7),
        'HRNet': Family(create('hrnet_w18_small'), 18),
        'CSPDarkNet': Family(create('cspdarknet53'), 23, lambda: images(32)),
        'CSPResNet': Family(create('cspresnet50'), 13, lambda: images(32)),
    }
