# STL-10, 5,000 labelled training images of 96x96 px. The paper gives neither
# batch size nor augmentation; readings: batch 16 as in the group's code, which
# crops 32 of the 96 px; CIFAR's crop in proportion (4 of 32 px are 12 of 96),
# and its normalisation.
_base_ = ['./cifar10_bs128.py']

dataset_type = 'mmstepnet.STL10'
data_root = 'data/stl10'
train_pipeline = [
    dict(type='RandomCrop', crop_size=96, padding=12),
    dict(type='RandomFlip', prob=0.5, direction='horizontal'),
    dict(type='PackInputs'),
]
train_dataloader = dict(
    batch_size=16,
    dataset=dict(
        type=dataset_type, data_root=data_root, pipeline=train_pipeline
    ),
)
val_dataloader = dict(dataset=dict(type=dataset_type, data_root=data_root))
test_dataloader = dict(dataset=dict(type=dataset_type, data_root=data_root))
