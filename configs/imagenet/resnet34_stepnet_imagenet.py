_base_ = ['./resnet50_stepnet_imagenet.py']

model = dict(backbone=dict(depth=34), head=dict(in_channels=512))
