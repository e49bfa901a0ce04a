_base_ = ['./faster_rcnn_r18_stepnet_digits.py']

model = dict(backbone=dict(attention=None))
