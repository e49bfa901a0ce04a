# IEBN in the adaptor as the cited paper's own module has it.
_base_ = ['./resnet20_stepnet_cifar10-50k.py']

model = dict(backbone=dict(attention=dict(type='StepNet', iebn='cited')))
