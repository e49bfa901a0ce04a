_base_ = ['../../../../configs/cifar100/resnet164_stepnet_cifar100.py']

model = dict(
    backbone=dict(attention=dict(type='StepNet', inputs='difference'))
)
