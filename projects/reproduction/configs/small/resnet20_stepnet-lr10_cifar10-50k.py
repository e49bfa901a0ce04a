_base_ = ['./resnet20_stepnet_cifar10-50k.py']

optim_wrapper = dict(
    paramwise_cfg=dict(custom_keys={'.attention.': dict(lr_mult=10.0)})
)
