_base_ = ['../../../../configs/stl10/resnet164_stepnet_stl10.py']

model = dict(backbone=dict(attention=dict(type='StepNet', inputs='x_next')))
