# ResNeXt-50 (32x4d); not in the paper.
_base_ = ['./resnet50_stepnet_imagenet.py']

model = dict(backbone=dict(type='mmstepnet.StepResNeXt'))
