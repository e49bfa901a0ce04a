# Human meshes, the accuracy that of all faces. Meshes of a batch do not
# inform each other.
custom_imports = dict(
    imports=[
        'projects.metric_attention.datasets',
        'projects.metric_attention.models',
    ],
    allow_failed_imports=False)

train_dataloader = dict(
    batch_size=4,
    num_workers=0,
    collate_fn=dict(type='pseudo_collate'),
    dataset=dict(
        type='mmstepnet.HumanSegmentation',
        data_root='data/human_seg',
        split='train'),
    sampler=dict(type='DefaultSampler', shuffle=True))
val_dataloader = dict(
    batch_size=6,
    num_workers=0,
    collate_fn=dict(type='pseudo_collate'),
    dataset=dict(
        type='mmstepnet.HumanSegmentation',
        data_root='data/human_seg',
        split='test'),
    sampler=dict(type='DefaultSampler', shuffle=False))
test_dataloader = val_dataloader

val_evaluator = dict(type='Accuracy', topk=(1, ))
test_evaluator = val_evaluator
