_base_ = [
    '../_base_/models/resnet_imagenet.py',
    'mmpretrain::_base_/datasets/imagenet_bs32.py',
    '../_base_/schedules/imagenet_120e.py',
    '../_base_/stiffness_runtime.py',
]
