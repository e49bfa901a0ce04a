# The 5 least stiff of the 51 measured blocks of the plain network's seed 0,
# after 6 epochs, by 1,000 training images: 0 % of its stiffness. Written by
# projects/reproduction/select_blocks.py, see the README.
_base_ = ['./resnet164_plain_cifar10-10k.py']

model = dict(
    backbone=dict(
        attention=dict(_delete_=True, type='StepNet'),
        blocks=['layer1.9', 'layer1.17', 'layer2.9', 'layer2.10', 'layer2.11'],
    )
)
