# Faster R-CNN R50 FPN with StepNet on COCO, 12 epochs (Table 3).
#
# No StepNet weights are public, so this starts from torchvision's ResNet-50:
# with init_step=1.0 the network computes what the plain one does, and the
# hook gives the adaptors' BNs, which norm_eval freezes, their statistics.
# The host freezes layer1, where a gate would stay at 1 for ever.
#
# From ImageNet training with StepNet, and with the paper's gate:
# projects/reproduction/configs/coco/faster_rcnn_r50_stepnet-imagenet_coco.py.
_base_ = ['mmdet::faster_rcnn/faster-rcnn_r50_fpn_1x_coco.py']

model = dict(
    backbone=dict(
        type='mmstepnet.StepResNet',
        attention=dict(type='StepNet', init_step=1.0),
        blocks=['layer2', 'layer3', 'layer4'],
    )
)
custom_hooks = [dict(type='mmstepnet.AttentionBNCalibrationHook')]
