# The number of modules, four, the epochs and batches are readings.
_base_ = [
    '../_base_/datasets/human_seg_bs4.py',
    '../_base_/schedules/ipn_printed.py',
]

model = dict(
    type='mmstepnet.FaceSegmentor',
    network=dict(
        in_channels=6,
        embed_dims=64,
        out_channels=8,
        depth=4,
        propagation=dict(
            type='Propagation', pseudo_metric=dict(type='Metric')
        ),
    ),
)
train_cfg = dict(max_epochs=8)
default_hooks = dict(checkpoint=dict(interval=8))
