_base_ = ['./faster_rcnn_r50_stepnet-imagenet_coco.py']

model = dict(
    backbone=dict(
        attention=dict(type='ECA'),
        init_cfg=dict(
            checkpoint='work_dirs/resnet50_eca_imagenet/epoch_120.pth'
        ),
    )
)
