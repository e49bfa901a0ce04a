_base_ = [
    '../_base_/models/faster_rcnn_r18_small.py',
    '../_base_/datasets/digits_detection.py',
    '../_base_/schedules/digits_detection_3e.py',
    'mmdet::_base_/default_runtime.py',
]
# A head with BN learns to tell ten classes apart in a few hundred iterations.
model = dict(
    neck=dict(norm_cfg=dict(type='BN')),
    roi_head=dict(
        bbox_head=dict(
            type='ConvFCBBoxHead',
            num_shared_convs=2,
            num_shared_fcs=1,
            conv_out_channels=64,
            num_classes=10,
            norm_cfg=dict(type='BN'),
        )
    ),
    train_cfg=dict(
        rpn=dict(sampler=dict(num=64)),
        rpn_proposal=dict(nms_pre=200, max_per_img=100),
        rcnn=dict(sampler=dict(num=64, pos_fraction=0.5)),
    ),
    test_cfg=dict(rpn=dict(nms_pre=200, max_per_img=100)),
)
default_hooks = dict(
    logger=dict(interval=25), checkpoint=dict(interval=1, max_keep_ckpts=2)
)
randomness = dict(seed=0)
