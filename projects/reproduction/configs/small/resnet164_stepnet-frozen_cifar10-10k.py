# The gate stays at its start: every step is sigmoid(-1) = 0.2689.
_base_ = ['./resnet164_stepnet_cifar10-10k.py']

optim_wrapper = dict(
    paramwise_cfg=dict(
        custom_keys={'.attention.': dict(lr_mult=0.0, decay_mult=0.0)}
    )
)
