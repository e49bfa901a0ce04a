_base_ = ['./vit_plain_digits16.py']

model = dict(
    backbone=dict(
        _delete_=True,
        type='mmstepnet.StepBackbone',
        backbone={{_base_.model.backbone}},
        attention=dict(type='StepNet', init_step=None),
    )
)
