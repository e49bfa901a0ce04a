_base_ = ['./resnet101_stepnet_imagenet.py']

model = dict(backbone=dict(attention=dict(type='ECA')))
