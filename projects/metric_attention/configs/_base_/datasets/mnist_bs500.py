# MNIST as vectors.
_base_ = ['./nodes.py']

train_dataloader = dict(
    batch_size=500,
    dataset=dict(
        type='mmstepnet.MNISTPoints', data_root='data/mnist', split='train'
    ),
)
val_dataloader = dict(
    batch_size=500,
    dataset=dict(
        type='mmstepnet.MNISTPoints', data_root='data/mnist', split='test'
    ),
)
test_dataloader = val_dataloader
