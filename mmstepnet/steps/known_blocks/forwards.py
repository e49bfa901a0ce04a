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
    }),
    ('timm.models', 'timm 1.0.31, the same in 0.9.16, 1.0.9 and 1.0.19', {
        'resnet.BasicBlock': '459b888dd004',
        'resnet.Bottleneck': '58c1c81d9c8b',
        'regnet.Bottleneck': '0017c95c5740',
        'cspnet.BottleneckBlock': '9f6839786546',
        'cspnet.DarkBlock': '6f272484f5d1',
    }),
    ('timm.models', 'timm 1.0.31', {
        'res2net.Bottle2neck': '168a6143acc4',
        'resnest.ResNestBottleneck': '38cda47c39b3',
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
    }),
    ('mmseg.models', 'mmseg 1.4.2 (onedl), the same in 1.2.2', {
        'backbones.resnet.BasicBlock': 'bdc829c6614c',
        'backbones.resnet.Bottleneck': '20fba8fe42be',
        'backbones.resnest.Bottleneck': '93ee5c1f9506',
        'utils.inverted_residual.InvertedResidual': '86630ad85c9a',
        'utils.inverted_residual.InvertedResidualV3': 'f8f7468523bc',
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
        'detr.modeling_detr.DetrEncoderLayer': '6bfb436538a8',
    }),
)

FORWARDS: dict[str, dict[str, str]] = {}
for _prefix, _versions, _classes in _TRIED:
    for _name, _found in _classes.items():
        FORWARDS.setdefault(f'{_prefix}.{_name}', {})[_found] = _versions


def known(name: str, *steps: StepDescription, **options) -> None:
    """Describe a class of another library, for the forwards listed here."""
    register_block(name, *steps, forwards=FORWARDS[name], **options)
