# The blocks that resnet20_stepnet-stiff_cifar10-10k.py leaves plain.
_base_ = ['./resnet20_stepnet-stiff_cifar10-10k.py']

model = dict(backbone=dict(blocks=['layer1.2', 'layer2.2', 'layer3.2']))
