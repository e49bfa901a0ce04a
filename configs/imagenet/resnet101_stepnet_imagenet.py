# Not in Table 2; the backbone of Table 3's second half.
_base_ = ['./resnet50_stepnet_imagenet.py']

model = dict(backbone=dict(depth=101))
