_base_ = ['./resnet20_stepnet_digits.py']

model = dict(
    backbone=dict(attention=None, norm_cfg=dict(type='mmstepnet.IEBN'))
)
