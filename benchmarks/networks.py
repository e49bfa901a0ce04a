"""The networks that benchmark.py compares."""

import argparse

import timm
import torch
import torch.nn as nn
from mmpretrain.models import ResNet, SEResNet
from torch import Tensor

import mmstepnet
from mmstepnet.models import StepResNet

BASELINE = 'mmpretrain ResNet-50'
ATTENTIONS = ('SE', 'CBAM', 'ECA', 'SEM', 'SRM', 'FCA', 'SGE')


def timm_net(name: str, **kwargs) -> nn.Module:
    """A network of timm's that ends, like the others, in its last map."""
    return timm.create_model(name, num_classes=0, global_pool='', **kwargs)


def step_net(attention: str | None = 'StepNet', **kwargs) -> StepResNet:
    """ResNet-50 of ours with an attention."""
    cfg = None if attention is None else dict(type=attention)
    return StepResNet(50, attention=cfg, host='mmpretrain', **kwargs)


NETWORKS = {
    BASELINE: lambda: ResNet(50, norm_eval=False),
    'plain': lambda: step_net(None),
    'StepNet naive': step_net,
    'StepNet': step_net,
    **{name: lambda name=name: step_net(name) for name in ATTENTIONS},
    'IEBN': lambda: step_net(None, norm_cfg=dict(type='mmstepnet.IEBN')),
    'mmpretrain SEResNet-50': lambda: SEResNet(50),
    'timm seresnet50': lambda: timm_net('seresnet50'),
    'timm resnet50 eca': lambda: timm_net(
        'resnet50', block_args=dict(attn_layer='eca')),
    'timm resnet50 cbam': lambda: timm_net(
        'resnet50', block_args=dict(attn_layer='cbam')),
}
DETECTION_BASELINE = 'mmdet ResNet-50'
BACKBONES = {
    DETECTION_BASELINE: dict(type='mmdet.ResNet'),
    **{name: dict(type='mmstepnet.StepResNet', attention=attention)
       for name, attention in (
           ('plain', None), ('StepNet naive', dict(type='StepNet')),
           ('StepNet', dict(type='StepNet')),
           ('SE', dict(type='SE')))},
}
INFERENCE = {
    'plain folded': lambda: mmstepnet.fold(step_net(None)),
    'StepNet folded': lambda: mmstepnet.fold(step_net()),
    'plain recorded': lambda: Recorded(step_net(None)),
    'StepNet recorded': lambda: Recorded(step_net()),
}


class Recorded(nn.Module):
    """A network whose stiffness is recorded in its passes alone.

    A recorder keeps all compiled code uncompiled, the others' as well.
    """

    def __init__(self, body: nn.Module):
        super().__init__()
        self.body = body
        self.recorder = mmstepnet.TrajectoryRecorder(body)

    @torch.compiler.disable
    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        with self.recorder:
            return self.body(images)


class Classifier(nn.Module):
    """The head that all networks share."""

    def __init__(self, body: nn.Module):
        super().__init__()
        self.body = body
        self.fc = nn.Linear(2048, 1000)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        features = self.body(images)
        if isinstance(features, tuple):
            features = features[-1]
        logits = self.fc(features.mean((2, 3)))
        return nn.functional.cross_entropy(logits, labels)


class Detector(nn.Module):
    """Faster R-CNN with FPN, as MMDetection's own config has it.

    BN is in eval mode and the first stage frozen, as in the COCO configs.

    Args:
        backbone (dict): Type of the backbone and its attention.
    """

    def __init__(self, backbone: dict):
        super().__init__()
        # MMDetection is wanted for detection alone.
        from mmdet.registry import MODELS
        from mmdet.utils import register_all_modules
        from mmengine.hub import get_config
        register_all_modules()
        cfg = get_config('mmdet::_base_/models/faster-rcnn_r50_fpn.py').model
        cfg.backbone.update(backbone, init_cfg=None)
        self.model = MODELS.build(cfg)

    def forward(self, images: Tensor, samples: list) -> Tensor:
        losses = self.model.loss(images, samples)
        return self.model.parse_losses(losses)[0]


def detection_samples(args: argparse.Namespace) -> list:
    """Five boxes an image at random, of 80 classes, in DetDataSamples."""
    from mmdet.structures import DetDataSample
    from mmengine.structures import InstanceData
    samples = []
    for _ in range(args.batch_size):
        corners = torch.rand(5, 2) * args.size / 2
        boxes = torch.cat([corners, corners + args.size / 4], 1)
        shape = (args.size, args.size)
        sample = DetDataSample(metainfo=dict(
            img_shape=shape, pad_shape=shape, batch_input_shape=shape,
            ori_shape=shape, scale_factor=(1, 1)))
        sample.gt_instances = InstanceData(
            bboxes=boxes, labels=torch.randint(80, (5, )))
        samples.append(sample.to(args.device))
    return samples
