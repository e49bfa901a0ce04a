# Scikit-learn's handwritten digits, 8x8 px, brought to 16x16 px.
_base_ = ['../../../../../configs/_base_/datasets/digits_bs64.py']

train_dataloader = dict(
    # A last batch of one image would leave BN no variance.
    drop_last=True,
    dataset=dict(
        pipeline=[
            dict(type='Resize', scale=16),
            dict(type='RandomCrop', crop_size=16, padding=2),
            dict(type='PackInputs'),
        ]
    ),
)
val_dataloader = dict(
    dataset=dict(
        pipeline=[dict(type='Resize', scale=16), dict(type='PackInputs')]
    )
)
test_dataloader = val_dataloader
