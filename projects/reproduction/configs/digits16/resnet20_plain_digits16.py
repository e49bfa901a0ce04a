_base_ = [
    '../../../../configs/_base_/models/resnet20_cifar.py',
    '../_base_/datasets/digits16_bs64.py',
    '../_base_/small_runtime.py',
]

model = dict(backbone=dict(attention=None))
optim_wrapper = dict(
    optimizer=dict(type='SGD', lr=0.1, momentum=0.9, weight_decay=1e-4)
)
# The paper's steps, at a half and three quarters (Table 6).
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=22),
    dict(type='MultiStepLR', by_epoch=True, milestones=[5, 7]),
]
train_cfg = dict(by_epoch=True, max_epochs=10, val_interval=5)
val_cfg = dict()
test_cfg = dict()
