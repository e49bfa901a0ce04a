_base_ = ['./resnet164_stepnet_cifar10-10k.py']

model = dict(backbone=dict(attention=dict(type='SE')))
