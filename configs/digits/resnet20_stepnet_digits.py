_base_ = [
    '../_base_/models/resnet20_cifar.py',
    '../_base_/datasets/digits_bs64.py',
    '../_base_/schedules/digits_20e.py',
    '../_base_/stiffness_runtime.py',
]

# A last batch of one image would leave BN no variance.
train_dataloader = dict(drop_last=True)
default_hooks = dict(
    logger=dict(interval=10), checkpoint=dict(interval=5, max_keep_ckpts=2)
)
randomness = dict(seed=0)
