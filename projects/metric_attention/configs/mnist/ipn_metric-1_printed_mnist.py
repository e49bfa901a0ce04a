# The number of modules is not printed; 10 epochs and batches of 500 are
# readings.
_base_ = [
    '../_base_/datasets/mnist_bs500.py',
    '../_base_/schedules/ipn_printed.py',
]

model = dict(
    type='mmstepnet.PointClassifier',
    network=dict(
        in_channels=784,
        embed_dims=100,
        out_channels=10,
        depth=1,
        propagation=dict(
            type='Propagation', pseudo_metric=dict(type='Metric')
        ),
    ),
)
optim_wrapper = dict(optimizer=dict(lr=1e-4))
train_cfg = dict(max_epochs=10)
default_hooks = dict(checkpoint=dict(interval=10))
