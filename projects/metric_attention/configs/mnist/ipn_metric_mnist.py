_base_ = [
    '../_base_/datasets/mnist_bs500.py',
    '../_base_/schedules/ipn_adam.py',
]

model = dict(
    type='mmstepnet.PointClassifier',
    network=dict(
        in_channels=784,
        embed_dims=100,
        out_channels=10,
        depth=1,
        # Ours: attention blocks, divided by the square root of the width.
        propagation=dict(type='MetricAttention', eps=100**0.5),
    ),
)
optim_wrapper = dict(optimizer=dict(lr=1e-3))
train_cfg = dict(max_epochs=5)
default_hooks = dict(checkpoint=dict(interval=5))
