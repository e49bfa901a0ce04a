_base_ = ['./resnet20_plain_digits16.py']

model = dict(
    head=dict(loss=dict(use_soft=True)),
    train_cfg=dict(augments=dict(type='Mixup', alpha=1.0)),
)
