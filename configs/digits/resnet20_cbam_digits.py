_base_ = ['./resnet20_stepnet_digits.py']

model = dict(backbone=dict(attention=dict(type='CBAM')))
