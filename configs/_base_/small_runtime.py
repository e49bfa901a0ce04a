_base_ = ['mmpretrain::_base_/default_runtime.py']

default_hooks = dict(
    logger=dict(interval=20), checkpoint=dict(max_keep_ckpts=2))
# Of the trained network, on the test images.
custom_hooks = [
    dict(type='mmstepnet.StiffnessHook', interval=None, figures=False)
]
randomness = dict(seed=0)
