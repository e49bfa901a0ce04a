# The number of modules is not printed, 1,000 epochs are a reading. Validation
# on every tenth epoch, and on the last ten one by one.
_base_ = [
    '../_base_/datasets/moon_bs400.py',
    '../_base_/schedules/ipn_printed.py',
]

model = dict(
    type='mmstepnet.PointClassifier',
    network=dict(
        in_channels=2,
        embed_dims=10,
        out_channels=2,
        depth=1,
        propagation=dict(
            type='Propagation', pseudo_metric=dict(type='Metric')
        ),
    ),
)
train_cfg = dict(
    max_epochs=1000, val_interval=10, dynamic_intervals=[(991, 1)]
)
default_hooks = dict(checkpoint=dict(interval=1000))
