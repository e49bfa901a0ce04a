_base_ = ['./vit_stepnet_cifar100.py']

model = dict(backbone=dict(type='VisionTransformer'))
