_base_ = ['./vit_stepnet_stl10.py']

model = dict(backbone=dict(type='VisionTransformer'))
