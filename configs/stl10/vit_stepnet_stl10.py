_base_ = [
    '../_base_/models/vit_cifar.py',
    '../_base_/datasets/stl10_bs16.py',
    '../_base_/schedules/vit_200e.py',
    '../_base_/stiffness_runtime.py',
]

# 8x8 patches, as on CIFAR.
model = dict(backbone=dict(img_size=96, patch_size=12))
train_dataloader = dict(batch_size=128)
