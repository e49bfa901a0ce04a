"""Fingerprints of the ``forward`` of each class that is described here.

A version named first was tried; in those behind it the source is the same.
"""

from .description import StepDescription, register_block

# Prefix, versions and, class by class, fingerprints.
_TRIED = (
    ('torchvision.models',
     'torchvision 0.26.0, the same in 0.16.2 and 0.21.0', {
        'resnet.BasicBlock': 'e469bbb0e395',
        'resnet.Bottleneck': 'ff89db889084',
        'regnet.ResBottleneckBlock': '253da56cde00',
        'mobilenetv2.InvertedResidual': 'aff6a950f1d0',
        'mobilenetv3.InvertedResidual': 'cc9a83a58e8d',
        'efficientnet.MBConv': '43f006128f39',
        'efficientnet.FusedMBConv': '43f006128f39',
        'convnext.CNBlock': 'abfa8a6bb84d',
        'vision_transformer.EncoderBlock': '7c331f587035',
        'swin_transformer.SwinTransformerBlock': 'fe09479eda8c',
        'swin_transformer.SwinTransformerBlockV2': 'd05893416dd9',
    }),
    ('timm.models', 'timm 1.0.31, the same in 0.9.16, 1.0.9 and 1.0.19', {
        'resnet.BasicBlock': '459b888dd004',
        'resnet.Bottleneck': '58c1c81d9c8b',
        'regnet.Bottleneck': '0017c95c5740',
        'cspnet.BottleneckBlock': '9f6839786546',
        'cspnet.DarkBlock': '6f272484f5d1',
        'convnext.ConvNeXtBlock': '14d5e4f75103',
        'swin_transformer.SwinTransformerBlock': '508dc1ff4ecc',
        'swin_transformer_v2.SwinTransformerV2Block': 'a8160469e1b4',
    }),
    ('timm.models', 'timm 1.0.31', {
        'res2net.Bottle2neck': '168a6143acc4',
        'resnest.ResNestBottleneck': '38cda47c39b3',
        'vision_transformer.Block': '960fb0bc61f3',
        'vision_transformer.ResPostBlock': 'f206cb69ffc3',
        'eva.EvaBlock': '5d491db3ef56',
        'eva.EvaBlockPostNorm': '8b96dac5c5e6',
    }),
    ('mmpretrain.models', 'mmpretrain 1.3.6 (onedl), the same in 1.2.0', {
        'backbones.resnet.BasicBlock': 'a45ab44c6218',
        'backbones.resnet.Bottleneck': '6f2e3792b3c5',
        'backbones.seresnet.SEBottleneck': '015271eb0ad1',
        'backbones.res2net.Bottle2neck': '7b24a69dcc91',
        'backbones.resnest.Bottleneck': 'f4894792745b',
        'backbones.cspnet.DarknetBottleneck': 'f828c38f9078',
        'backbones.mobilenet_v2.InvertedResidual': '86630ad85c9a',
        'utils.inverted_residual.InvertedResidual': 'fd8c61869bdc',
        'backbones.efficientnet.EdgeResidual': 'ba0d5b3423fb',
        'backbones.convnext.ConvNeXtBlock': '470c003fcc2d',
        'backbones.vision_transformer.TransformerEncoderLayer': 'eb96e5f28c62',
        'backbones.swin_transformer.SwinBlock': 'a3bc5c84a0ed',
    }),
    ('mmdet.models', 'mmdet 3.5.1 (onedl), the same in 3.3.0', {
        'backbones.resnet.BasicBlock': 'bdc829c6614c',
        'backbones.resnet.Bottleneck': '20fba8fe42be',
        'backbones.resnest.Bottleneck': '93ee5c1f9506',
        'backbones.res2net.Bottle2neck': 'f8ceec7ed316',
        'layers.csp_layer.DarknetBottleneck': '5790a75946c4',
        'layers.csp_layer.CSPNeXtBlock': '5790a75946c4',
        'backbones.darknet.ResBlock': 'a7276f98a5dc',
        'layers.inverted_residual.InvertedResidual': 'fd8c61869bdc',
        'backbones.swin.SwinBlock': 'a3bc5c84a0ed',
    }),
    ('mmseg.models', 'mmseg 1.4.2 (onedl), the same in 1.2.2', {
        'backbones.resnet.BasicBlock': 'bdc829c6614c',
        'backbones.resnet.Bottleneck': '20fba8fe42be',
        'backbones.resnest.Bottleneck': '93ee5c1f9506',
        'utils.inverted_residual.InvertedResidual': '86630ad85c9a',
        'utils.inverted_residual.InvertedResidualV3': 'f8f7468523bc',
        'backbones.vit.TransformerEncoderLayer': 'e49a03cb091f',
        'backbones.swin.SwinBlock': 'a3bc5c84a0ed',
    }),
    ('timm.models', 'timm 1.0.31, the same in 1.0.9 and 1.0.19', {
        '_efficientnet_blocks.InvertedResidual': '13224c704521',
        '_efficientnet_blocks.DepthwiseSeparableConv': 'c30157d5e615',
        '_efficientnet_blocks.EdgeResidual': '388cc0472119',
        '_efficientnet_blocks.ConvBnAct': '6e6ea99c06be',
    }),
    ('transformers.models', 'transformers 5.23.0', {
        'resnet.modeling_resnet.ResNetBasicLayer': 'cf73c25d27ae',
        'resnet.modeling_resnet.ResNetBottleNeckLayer': 'cf73c25d27ae',
        'regnet.modeling_regnet.RegNetXLayer': 'cf73c25d27ae',
        'regnet.modeling_regnet.RegNetYLayer': 'cf73c25d27ae',
        'convnext.modeling_convnext.ConvNextLayer': 'e2186d7d9a49',
        'vit.modeling_vit.ViTLayer': 'a462ca28ad99',
        'deit.modeling_deit.DeiTLayer': 'a462ca28ad99',
        'dinov2.modeling_dinov2.Dinov2Layer': 'd64ba88ee33d',
        'dinov2_with_registers.modeling_dinov2_with_registers.Dinov2WithRegistersLayer':
        'd64ba88ee33d',
        'detr.modeling_detr.DetrEncoderLayer': '6bfb436538a8',
    }),
    ('timm.models', 'timm 0.9.16 to 1.0.9', {
        'vision_transformer.Block': '1517bef4ecc8',
        'vision_transformer.ResPostBlock': 'd8fe1c3b27f1',
    }),
    ('timm.models', 'timm 1.0.19', {
        'vision_transformer.Block': 'e3f728d46f33',
        'vision_transformer.ResPostBlock': 'fb7031c996ce',
    }),
    ('timm.models', 'timm 0.9.16 to 1.0.19', {
        'eva.EvaBlock': '983617c0c7dc',
        'eva.EvaBlockPostNorm': 'bbb3082572fb',
    }),
)

FORWARDS: dict[str, dict[str, str]] = {}
for _prefix, _versions, _classes in _TRIED:
    for _name, _found in _classes.items():
        FORWARDS.setdefault(f'{_prefix}.{_name}', {})[_found] = _versions


def known(name: str, *steps: StepDescription, **options) -> None:
    """Describe a class of another library, for the forwards listed here."""
    register_block(name, *steps, forwards=FORWARDS[name], **options)
