# Mask R-CNN, not in the paper. It starts as ../faster_rcnn_r50_stepnet_coco.py
# does.
_base_ = ['mmdet::mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py']

model = dict(
    backbone=dict(
        type='mmstepnet.StepResNet',
        attention=dict(type='StepNet', init_step=1.0),
        blocks=['layer2', 'layer3', 'layer4'],
    )
)
custom_hooks = [dict(type='mmstepnet.AttentionBNCalibrationHook')]
