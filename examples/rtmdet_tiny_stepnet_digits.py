# The same on composed digits, from random weights, in minutes on a CPU:
#
#     python tools/dataset_converters/compose_digits.py \
#         --out data/digits_detection
#     python tools/train.py examples/rtmdet_tiny_stepnet_digits.py
_base_ = ['./rtmdet_tiny_stepnet_coco.py']

norm_cfg = dict(type='BN')
model = dict(
    backbone=dict(
        attention=dict(init_step=None),
        backbone=dict(init_cfg=None, norm_cfg=norm_cfg),
    ),
    neck=dict(norm_cfg=norm_cfg),
    bbox_head=dict(num_classes=10, norm_cfg=norm_cfg),
)

data_root = 'data/digits_detection/'
# No flip, which makes other characters.
pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='Resize', scale=(128, 128), keep_ratio=True),
    dict(type='PackDetInputs'),
]
digits = dict(
    metainfo=dict(classes=tuple('0123456789')),
    data_root=data_root,
    pipeline=pipeline,
)
train_dataloader = dict(
    batch_size=8,
    num_workers=1,
    dataset=dict(
        **digits,
        ann_file='annotations/instances_train.json',
        data_prefix=dict(img='train/'),
    ),
)
val_dataloader = dict(
    num_workers=1,
    dataset=dict(
        **digits,
        ann_file='annotations/instances_val.json',
        data_prefix=dict(img='val/'),
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(ann_file=data_root + 'annotations/instances_val.json')
test_evaluator = val_evaluator

max_epochs = 6
train_cfg = dict(
    max_epochs=max_epochs, val_interval=max_epochs, dynamic_intervals=None
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=50),
    dict(
        type='CosineAnnealingLR',
        eta_min=2e-4,
        begin=0,
        end=max_epochs,
        T_max=max_epochs,
        by_epoch=True,
        convert_to_iter_based=True,
    ),
]
optim_wrapper = dict(optimizer=dict(lr=2e-3))
default_hooks = dict(checkpoint=dict(interval=max_epochs))
# The base's second pipeline and slow average are for 300 epochs.
custom_hooks = []
