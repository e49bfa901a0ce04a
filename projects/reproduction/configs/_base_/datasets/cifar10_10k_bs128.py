# 1,000 training images of each class of CIFAR-10, always the same; all 10,000
# test images. Image folders, JPEG encoded: cifar10/{train,test}/CLASS/*.jpg.
_base_ = ['../../../../../configs/_base_/datasets/cifar10_bs128.py']

# Decoded in BGR order.
data_preprocessor = dict(to_rgb=True)
train_dataloader = dict(
    num_workers=0,
    dataset=dict(
        _delete_=True,
        type='mmstepnet.FolderInMemory',
        data_root='data/cifar10/train',
        per_class=1000,
        pipeline=[
            dict(type='RandomCrop', crop_size=32, padding=4),
            dict(type='RandomFlip', prob=0.5, direction='horizontal'),
            dict(type='PackInputs'),
        ],
    ),
)
val_dataloader = dict(
    num_workers=0,
    dataset=dict(
        _delete_=True,
        type='mmstepnet.FolderInMemory',
        data_root='data/cifar10/test',
        pipeline=[dict(type='PackInputs')],
    ),
)
test_dataloader = val_dataloader
