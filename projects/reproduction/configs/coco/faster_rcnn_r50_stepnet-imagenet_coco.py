# Table 3, from ImageNet training with StepNet and with the paper's gate. Train
# configs/imagenet/resnet50_stepnet_imagenet.py first; its BNs, the adaptors'
# among them, keep their statistics, and the frozen stage its trained adaptors.
_base_ = ['../../../../configs/faster_rcnn_r50_stepnet_coco.py']

model = dict(
    backbone=dict(
        attention=dict(init_step=None),
        blocks=None,
        init_cfg=dict(
            checkpoint='work_dirs/resnet50_stepnet_imagenet/epoch_120.pth',
            prefix='backbone.',
        ),
    )
)
custom_hooks = []
