# MMDetection's RTMDet-tiny with StepNet in its backbone. As any detector:
#
#     python tools/train.py examples/rtmdet_tiny_stepnet_coco.py
#
# The ImageNet checkpoint that the base config names starts the backbone, and
# init_step=1.0 keeps what it computes.
_base_ = ['mmdet::rtmdet/rtmdet_tiny_8xb32-300e_coco.py']

model = dict(
    backbone=dict(
        _delete_=True,
        type='mmstepnet.StepBackbone',
        attention=dict(type='StepNet', init_step=1.0),
        backbone={{_base_.model.backbone}},
    )
)
# No weight decay on the adaptors; lr_mult would give them a rate of their own.
optim_wrapper = dict(
    paramwise_cfg=dict(custom_keys={'step.attention.': dict(decay_mult=0)})
)
