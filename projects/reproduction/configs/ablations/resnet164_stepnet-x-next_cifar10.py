_base_ = ['../../../../configs/cifar10/resnet164_stepnet_cifar10.py']

model = dict(backbone=dict(attention=dict(type='StepNet', inputs='x_next')))
