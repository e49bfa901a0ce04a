_base_ = ['./faster_rcnn_r101_stepnet-imagenet_coco.py']

model = dict(
    backbone=dict(
        attention=dict(type='SGE'),
        init_cfg=dict(
            checkpoint='work_dirs/resnet101_sge_imagenet/epoch_120.pth'
        ),
    )
)
