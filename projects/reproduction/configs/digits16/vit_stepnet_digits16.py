_base_ = [
    '../../../../configs/_base_/models/vit_cifar.py',
    '../../../../configs/_base_/schedules/vit_200e.py',
    '../_base_/datasets/digits16_bs64.py',
    '../_base_/small_runtime.py',
]

# 7 layers of width 64, 4x4 patches an image.
model = dict(
    backbone=dict(
        arch=dict(embed_dims=64, num_heads=4, feedforward_channels=256),
        img_size=16,
    ),
    head=dict(in_channels=64),
)
optim_wrapper = dict(optimizer=dict(lr=1e-3))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=22),
    dict(
        type='CosineAnnealingLR',
        by_epoch=True,
        begin=1,
        end=20,
        T_max=19,
        convert_to_iter_based=True,
    ),
]
train_cfg = dict(max_epochs=20, val_interval=5)
auto_scale_lr = dict(base_batch_size=64)
