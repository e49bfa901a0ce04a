_base_ = ['./resnet20_stepnet_cifar10-10k.py']

# 4, 8 and 16 channels a group, as in ResNet-50's first stages with 64 groups.
model = dict(backbone=dict(attention=dict(type='SGE', groups=4)))
