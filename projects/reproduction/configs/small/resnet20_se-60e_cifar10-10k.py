_base_ = ['./resnet20_stepnet-60e_cifar10-10k.py']

model = dict(backbone=dict(attention=dict(type='SE')))
