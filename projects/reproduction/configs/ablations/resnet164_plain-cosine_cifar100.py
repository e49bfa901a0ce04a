_base_ = ['../../../../configs/cifar100/resnet164_plain_cifar100.py']

param_scheduler = dict(
    _delete_=True, type='CosineAnnealingLR', by_epoch=True, T_max=164
)
