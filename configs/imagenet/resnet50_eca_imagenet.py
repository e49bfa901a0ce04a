_base_ = ['./resnet50_stepnet_imagenet.py']

model = dict(backbone=dict(attention=dict(type='ECA')))
