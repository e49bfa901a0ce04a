_base_ = [
    '../_base_/models/vit_cifar.py',
    '../_base_/datasets/cifar100_bs128.py',
    '../_base_/schedules/vit_200e.py',
    '../_base_/stiffness_runtime.py',
]

model = dict(head=dict(num_classes=100))
