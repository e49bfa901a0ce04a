# Multi30k, English to German, 29,000 sentences.
custom_imports = dict(
    imports=[
        'projects.autocast',
        'projects.metric_attention.datasets.multi30k',
        'projects.metric_attention.models.translation_metrics',
    ],
    allow_failed_imports=False,
)

dataset = dict(
    type='mmstepnet.Multi30k',
    data_root='data/multi30k',
    source='en',
    target='de',
    vocab_size=8000,
)

train_dataloader = dict(
    batch_size=64,
    num_workers=0,
    dataset=dict(**dataset, split='train'),
    sampler=dict(type='DefaultSampler', shuffle=True),
    batch_sampler=dict(type='mmstepnet.BucketBatchSampler'),
)
val_dataloader = dict(
    batch_size=64,
    num_workers=0,
    dataset=dict(**dataset, split='val', sort=True),
    sampler=dict(type='DefaultSampler', shuffle=False),
)
test_dataloader = dict(
    batch_size=64,
    num_workers=0,
    dataset=dict(**dataset, split='test_2016_flickr', sort=True),
    sampler=dict(type='DefaultSampler', shuffle=False),
)
del dataset

val_evaluator = [
    dict(type='mmstepnet.BLEU'),
    dict(type='mmstepnet.Perplexity'),
]
test_evaluator = val_evaluator
