_base_ = ['./small_20e.py']

param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=79),
    dict(
        type='CosineAnnealingLR',
        by_epoch=True,
        begin=1,
        end=6,
        T_max=5,
        convert_to_iter_based=True,
    ),
]
train_cfg = dict(max_epochs=6, val_interval=1)
