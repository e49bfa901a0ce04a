_base_ = ['./faster_rcnn_r101_stepnet_coco.py']

model = dict(backbone=dict(attention=None, blocks=None))
custom_hooks = []
