# 5 epochs of 391 iterations.
_base_ = ['./small_20e.py']

param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=391),
    dict(
        type='CosineAnnealingLR',
        by_epoch=True,
        begin=1,
        end=5,
        T_max=4,
        convert_to_iter_based=True,
    ),
]
train_cfg = dict(max_epochs=5, val_interval=5)
