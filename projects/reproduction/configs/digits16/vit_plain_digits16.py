_base_ = ['./vit_stepnet_digits16.py']

model = dict(backbone=dict(type='VisionTransformer'))
