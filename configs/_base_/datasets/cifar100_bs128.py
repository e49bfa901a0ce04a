# The same augmentation and normalisation as CIFAR-10's, see the paper.
_base_ = ['./cifar10_bs128.py']

data_preprocessor = dict(num_classes=100)
train_dataloader = dict(
    dataset=dict(type='CIFAR100', data_root='data/cifar100')
)
val_dataloader = dict(dataset=dict(type='CIFAR100', data_root='data/cifar100'))
test_dataloader = dict(
    dataset=dict(type='CIFAR100', data_root='data/cifar100')
)
