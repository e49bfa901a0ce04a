# Five of 54 blocks carry the adaptor, spread evenly and not chosen: what a
# selection of as many stiff blocks is to be compared with. That selection
# needs a trained plain network:
#   python -m projects.reproduction.select_blocks \
#     configs/cifar100/resnet164_plain_cifar100.py CHECKPOINT --out CONFIG
_base_ = ['../../../../configs/cifar100/resnet164_stepnet_cifar100.py']

model = dict(
    backbone=dict(
        blocks=['layer1.5', 'layer1.15', 'layer2.8', 'layer3.1', 'layer3.11']
    )
)
