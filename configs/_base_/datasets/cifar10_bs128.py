# Paper: batch 128, mean (.4914, .4822, .4465), std (.2023, .1994, .2010).
_base_ = ['mmpretrain::_base_/datasets/cifar10_bs16.py']

data_preprocessor = dict(
    mean=[125.307, 122.961, 113.8575], std=[51.5865, 50.847, 51.255]
)
train_dataloader = dict(batch_size=128)
val_dataloader = dict(batch_size=128)
test_dataloader = dict(batch_size=128)
