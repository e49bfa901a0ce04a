# The 3 stiffest of the 6 measured blocks of the plain network's seed 0, after
# 20 epochs, by 1,000 training images: 99 % of its stiffness. Written by
# projects/reproduction/select_blocks.py, see the README.
_base_ = ['./resnet20_plain_cifar10-10k.py']

model = dict(
    backbone=dict(
        attention=dict(_delete_=True, type='StepNet'),
        blocks=['layer1.1', 'layer2.1', 'layer3.1'],
    )
)
