_base_ = [
    '../_base_/models/resnet164_cifar.py',
    '../_base_/datasets/cifar10_bs128.py',
    '../_base_/schedules/cifar_164e.py',
    '../_base_/stiffness_runtime.py',
]
