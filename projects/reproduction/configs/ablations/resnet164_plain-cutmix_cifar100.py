_base_ = ['../../../../configs/cifar100/resnet164_plain_cifar100.py']

model = dict(
    head=dict(loss=dict(use_soft=True)),
    train_cfg=dict(augments=dict(type='CutMix', alpha=1.0)),
)
