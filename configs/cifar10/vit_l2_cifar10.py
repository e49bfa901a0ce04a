_base_ = ['./vit_stepnet_cifar10.py']

model = dict(
    backbone=dict(
        type='mmstepnet.PropagationVisionTransformer',
        # Ours: the square root of a head's width, where the paper has 1.
        propagation=dict(type='L2Attention', eps=64**0.5),
    )
)
