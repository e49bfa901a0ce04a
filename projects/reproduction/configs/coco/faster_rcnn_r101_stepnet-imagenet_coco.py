# Table 3, ResNet-101. See faster_rcnn_r50_stepnet-imagenet_coco.py.
_base_ = ['./faster_rcnn_r50_stepnet-imagenet_coco.py']

model = dict(
    backbone=dict(
        depth=101,
        init_cfg=dict(
            checkpoint='work_dirs/resnet101_stepnet_imagenet/epoch_120.pth'
        ),
    )
)
