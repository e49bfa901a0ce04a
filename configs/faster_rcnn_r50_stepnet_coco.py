# Faster R-CNN R50 FPN with StepNet on COCO, 12 epochs (Table 3).
#
# No StepNet weights are public, so this starts from torchvision's ResNet-50:
# with init_step=1.0 the network computes what the plain one does, and the
# hook gives the adaptors' BNs, which norm_eval freezes, their statistics.
#
# The paper's own route, after training
# configs/imagenet/resnet50_stepnet_imagenet.py:
#   model.backbone.attention.init_step=None
#   model.backbone.init_cfg.checkpoint=work_dirs/resnet50_stepnet_imagenet/\
#     epoch_120.pth model.backbone.init_cfg.prefix=backbone.
_base_ = ['mmdet::faster_rcnn/faster-rcnn_r50_fpn_1x_coco.py']

model = dict(
    backbone=dict(
        type='mmstepnet.StepResNet',
        attention=dict(type='StepNet', init_step=1.0)))
custom_hooks = [dict(type='mmstepnet.AttentionBNCalibrationHook')]
