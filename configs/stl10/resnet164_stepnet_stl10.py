_base_ = [
    '../_base_/models/resnet164_cifar.py',
    '../_base_/datasets/stl10_bs16.py',
    '../_base_/schedules/cifar_164e.py',
    '../_base_/stiffness_runtime.py',
]

auto_scale_lr = dict(base_batch_size=16)
