# All 50,000 training images of CIFAR-10 as JPEG files.
_base_ = ['./cifar10_10k_bs128.py']

train_dataloader = dict(dataset=dict(per_class=None))
