_base_ = [
    '../../../../configs/_base_/models/resnet20_cifar.py',
    '../_base_/datasets/cifar10_10k_bs128.py',
    '../_base_/schedules/small_60e.py',
    '../_base_/small_runtime.py',
]
