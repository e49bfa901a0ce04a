_base_ = ['./vit_stepnet_cifar10.py']

model = dict(
    backbone=dict(
        type='mmstepnet.PropagationVisionTransformer',
        propagation=dict(type='MetricAttention')))
