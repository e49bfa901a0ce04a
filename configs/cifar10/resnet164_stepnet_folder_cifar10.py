# CIFAR-10 unpacked into image folders, cifar10/{train,test}/CLASS/*.jpg,
# instead of the original binary files.
_base_ = ['./resnet164_stepnet_cifar10.py']

train_dataloader = dict(
    dataset=dict(
        _delete_=True,
        type='CustomDataset',
        data_root='data/cifar10/train',
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='RandomCrop', crop_size=32, padding=4),
            dict(type='RandomFlip', prob=0.5, direction='horizontal'),
            dict(type='PackInputs'),
        ],
    )
)
val_dataloader = dict(
    dataset=dict(
        _delete_=True,
        type='CustomDataset',
        data_root='data/cifar10/test',
        pipeline=[dict(type='LoadImageFromFile'), dict(type='PackInputs')],
    )
)
test_dataloader = val_dataloader
# Files are read in BGR order.
data_preprocessor = dict(to_rgb=True)
