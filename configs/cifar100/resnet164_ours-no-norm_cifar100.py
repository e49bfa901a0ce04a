_base_ = ['./resnet164_stepnet_cifar100.py']

model = dict(backbone=dict(attention=dict(type='OursNoNorm')))
