_base_ = [
    '../_base_/models/vit_cifar.py',
    '../_base_/datasets/cifar10_bs128.py',
    '../_base_/schedules/vit_200e.py',
    '../_base_/stiffness_runtime.py',
]
