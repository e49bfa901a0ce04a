# Scikit-learn's handwritten digits, 8x8 px, brought to 32x32 px.
dataset_type = 'mmstepnet.DigitsClassification'
data_preprocessor = dict(
    num_classes=10,
    # Of the training split; the three channels are equal.
    mean=[77.9, 77.9, 77.9],
    std=[95.9, 95.9, 95.9],
    to_rgb=False,
)

# No flip, which makes other characters.
train_pipeline = [
    dict(type='Resize', scale=32),
    dict(type='RandomCrop', crop_size=32, padding=4),
    dict(type='PackInputs'),
]
test_pipeline = [dict(type='Resize', scale=32), dict(type='PackInputs')]

train_dataloader = dict(
    batch_size=64,
    num_workers=1,
    persistent_workers=True,
    dataset=dict(type=dataset_type, split='train', pipeline=train_pipeline),
    sampler=dict(type='DefaultSampler', shuffle=True),
)
val_dataloader = dict(
    batch_size=64,
    num_workers=1,
    persistent_workers=True,
    dataset=dict(type=dataset_type, split='val', pipeline=test_pipeline),
    sampler=dict(type='DefaultSampler', shuffle=False),
)
test_dataloader = val_dataloader

val_evaluator = dict(type='Accuracy', topk=(1,))
test_evaluator = val_evaluator
