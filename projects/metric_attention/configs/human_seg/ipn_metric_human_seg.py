_base_ = [
    '../_base_/datasets/human_seg_bs4.py',
    '../_base_/schedules/ipn_adam.py',
]

model = dict(
    type='mmstepnet.FaceSegmentor',
    network=dict(
        in_channels=6,
        embed_dims=64,
        out_channels=8,
        depth=4,
        # Ours: attention blocks, divided by the square root of the width.
        propagation=dict(type='MetricAttention', eps=64**0.5),
    ),
)
optim_wrapper = dict(optimizer=dict(lr=3e-3))
train_cfg = dict(max_epochs=8)
default_hooks = dict(checkpoint=dict(interval=8))
