_base_ = [
    '../_base_/datasets/moon_bs200.py',
    '../_base_/schedules/ipn_adam.py',
]

model = dict(
    type='mmstepnet.PointClassifier',
    network=dict(
        in_channels=2,
        embed_dims=10,
        out_channels=2,
        depth=2,
        # Ours: attention blocks, divided by the square root of the width.
        propagation=dict(type='MetricAttention', eps=10**0.5),
    ),
)
train_cfg = dict(max_epochs=100)
default_hooks = dict(checkpoint=dict(interval=100))
