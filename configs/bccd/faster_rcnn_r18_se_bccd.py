_base_ = ['./faster_rcnn_r18_stepnet_bccd.py']
model = dict(backbone=dict(attention=dict(type='SE')))
