# Table 3, ResNet-101. See ../faster_rcnn_r50_stepnet_coco.py for the start.
_base_ = ['../faster_rcnn_r50_stepnet_coco.py']

model = dict(
    backbone=dict(
        depth=101, init_cfg=dict(checkpoint='torchvision://resnet101')
    )
)
