# ImageNet classifier (Table 2); depth and head width are the config's.
_base_ = ['mmpretrain::_base_/models/resnet50.py']

model = dict(backbone=dict(type='mmstepnet.StepResNet'))
