_base_ = ['../../../../configs/_base_/stiffness_runtime.py']

default_hooks = dict(
    logger=dict(interval=20), checkpoint=dict(max_keep_ckpts=2)
)
randomness = dict(seed=0)
