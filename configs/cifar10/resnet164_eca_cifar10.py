_base_ = ['./resnet164_stepnet_cifar10.py']

model = dict(backbone=dict(attention=dict(type='ECA')))
