_base_ = [
    '../_base_/models/transformer_512.py',
    '../_base_/datasets/multi30k_bs64.py',
    '../_base_/schedules/translation_printed.py',
    '../../../../configs/_base_/default_runtime.py',
]

train_dataloader = dict(batch_size=128)
randomness = dict(seed=0)
