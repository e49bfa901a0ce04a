# Human meshes, the accuracy that of all faces. Meshes of a batch do not
# inform each other.
_base_ = ['./nodes.py']

train_dataloader = dict(
    batch_size=4,
    collate_fn=dict(type='pseudo_collate'),
    dataset=dict(
        type='mmstepnet.HumanSegmentation',
        data_root='data/human_seg',
        split='train',
    ),
)
val_dataloader = dict(
    batch_size=6,
    collate_fn=dict(type='pseudo_collate'),
    dataset=dict(
        type='mmstepnet.HumanSegmentation',
        data_root='data/human_seg',
        split='test',
    ),
)
test_dataloader = val_dataloader
