# MNIST as vectors. The images of a batch are the nodes of the network, in
# testing too: its batches are as large as in training and always the same.
custom_imports = dict(
    imports=[
        'projects.metric_attention.datasets',
        'projects.metric_attention.models',
    ],
    allow_failed_imports=False)

train_dataloader = dict(
    batch_size=500,
    num_workers=0,
    collate_fn=dict(type='whole_batch'),
    dataset=dict(
        type='mmstepnet.MNISTPoints', data_root='data/mnist', split='train'),
    sampler=dict(type='DefaultSampler', shuffle=True))
val_dataloader = dict(
    batch_size=500,
    num_workers=0,
    collate_fn=dict(type='whole_batch'),
    dataset=dict(
        type='mmstepnet.MNISTPoints', data_root='data/mnist', split='test'),
    sampler=dict(type='DefaultSampler', shuffle=False))
test_dataloader = val_dataloader

val_evaluator = dict(type='Accuracy', topk=(1, ))
test_evaluator = val_evaluator
