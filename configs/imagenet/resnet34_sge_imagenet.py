_base_ = ['./resnet34_stepnet_imagenet.py']

model = dict(backbone=dict(attention=dict(type='SGE')))
