# What the networks share whose nodes are the points of a batch, in testing
# too: its batches are as large as in training and always the same.
_base_ = ['mmpretrain::_base_/default_runtime.py']

custom_imports = dict(
    imports=[
        'projects.metric_attention.datasets',
        'projects.metric_attention.models',
    ],
    allow_failed_imports=False,
)

train_dataloader = dict(
    num_workers=0,
    collate_fn=dict(type='whole_batch'),
    sampler=dict(type='DefaultSampler', shuffle=True),
)
val_dataloader = dict(
    num_workers=0,
    collate_fn=dict(type='whole_batch'),
    sampler=dict(type='DefaultSampler', shuffle=False),
)
test_dataloader = val_dataloader

val_evaluator = dict(type='Accuracy', topk=(1,))
test_evaluator = val_evaluator

default_hooks = dict(logger=dict(interval=1000))
randomness = dict(seed=0)
