_base_ = [
    '../../../../configs/_base_/models/resnet20_cifar.py',
    '../_base_/datasets/cifar10_50k_bs128.py',
    '../_base_/schedules/small_5e_50k.py',
    '../_base_/small_runtime.py',
]
