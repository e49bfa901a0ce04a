_base_ = ['./resnet164_stepnet_stl10.py']

model = dict(
    backbone=dict(attention=None, norm_cfg=dict(type='mmstepnet.IEBN'))
)
