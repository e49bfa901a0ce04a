# 3 epochs of 125 iterations at batch 8, from scratch.
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-3, weight_decay=0.01),
    clip_grad=dict(max_norm=10),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=50),
    dict(
        type='CosineAnnealingLR',
        by_epoch=False,
        begin=50,
        end=375,
        T_max=325,
        eta_min=1e-5,
    ),
]
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=3, val_interval=3)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
auto_scale_lr = dict(enable=False, base_batch_size=8)
