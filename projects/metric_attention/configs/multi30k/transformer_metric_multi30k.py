_base_ = [
    '../_base_/models/transformer_512.py',
    '../_base_/datasets/multi30k_bs64.py',
    '../_base_/schedules/translation_3e.py',
    '../../../../configs/_base_/default_runtime.py',
]

randomness = dict(seed=0)
