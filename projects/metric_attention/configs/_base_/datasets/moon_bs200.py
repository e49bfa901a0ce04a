# Two half circles.
_base_ = ['./nodes.py']

train_dataloader = dict(
    batch_size=200, dataset=dict(type='mmstepnet.Moon', split='train')
)
val_dataloader = dict(
    batch_size=200, dataset=dict(type='mmstepnet.Moon', split='test')
)
test_dataloader = val_dataloader
