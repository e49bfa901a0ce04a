# Handwritten digits on textured canvases, COCO format, 128x128 px, made by
# tools/dataset_converters/compose_digits.py.
_base_ = ['mmdet::_base_/datasets/coco_detection.py']

dataset_type = 'CocoDataset'
metainfo = dict(
    classes=tuple('0123456789'),
    palette=[
        (220, 20, 60),
        (0, 120, 230),
        (0, 150, 60),
        (250, 170, 30),
        (106, 0, 228),
        (0, 180, 199),
        (197, 60, 200),
        (120, 90, 40),
        (110, 110, 110),
        (160, 200, 0),
    ],
)
data_root = 'data/digits_detection/'

scale = (128, 128)

# No flip, which makes other characters.
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='Resize', scale=scale, keep_ratio=True),
    dict(type='PackDetInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=scale, keep_ratio=True),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(
        type='PackDetInputs',
        meta_keys=(
            'img_id',
            'img_path',
            'ori_shape',
            'img_shape',
            'scale_factor',
        ),
    ),
]

train_dataloader = dict(
    batch_size=8,
    num_workers=1,
    dataset=dict(
        type=dataset_type,
        metainfo=metainfo,
        data_root=data_root,
        ann_file='annotations/instances_train.json',
        data_prefix=dict(img='train/'),
        # Empty pictures teach what is no digit.
        filter_cfg=dict(filter_empty_gt=False, min_size=32),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=8,
    num_workers=1,
    dataset=dict(
        type=dataset_type,
        metainfo=metainfo,
        data_root=data_root,
        ann_file='annotations/instances_val.json',
        data_prefix=dict(img='val/'),
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader

val_evaluator = dict(ann_file=data_root + 'annotations/instances_val.json')
test_evaluator = val_evaluator
