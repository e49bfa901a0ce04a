_base_ = ['./resnext50_stepnet_imagenet.py']

model = dict(backbone=dict(attention=None))
