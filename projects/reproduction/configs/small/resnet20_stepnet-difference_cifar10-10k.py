_base_ = ['./resnet20_stepnet_cifar10-10k.py']

model = dict(
    backbone=dict(attention=dict(type='StepNet', inputs='difference'))
)
