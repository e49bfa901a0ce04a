_base_ = ['./resnet20_plain_digits16.py']

param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=22),
    dict(
        type='CosineAnnealingLR',
        by_epoch=True,
        begin=1,
        end=10,
        T_max=9,
        convert_to_iter_based=True,
    ),
]
