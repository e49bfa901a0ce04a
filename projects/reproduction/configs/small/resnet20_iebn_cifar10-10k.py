_base_ = ['./resnet20_stepnet_cifar10-10k.py']

model = dict(
    backbone=dict(attention=None, norm_cfg=dict(type='mmstepnet.IEBN'))
)
