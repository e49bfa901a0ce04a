_base_ = ['./resnet20_se_cifar10-10k.py']

model = dict(backbone=dict(attention=dict(init_step=1.0)))
