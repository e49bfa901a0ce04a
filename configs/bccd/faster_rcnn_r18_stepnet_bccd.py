_base_ = [
    '../_base_/models/faster_rcnn_r18_small.py',
    '../_base_/datasets/bccd_detection.py',
    '../_base_/schedules/bccd_12e.py',
    'mmdet::_base_/default_runtime.py',
]
model = dict(roi_head=dict(bbox_head=dict(num_classes=3)))
default_hooks = dict(
    logger=dict(interval=10), checkpoint=dict(interval=1, max_keep_ckpts=2)
)
