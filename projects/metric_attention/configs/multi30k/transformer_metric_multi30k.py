_base_ = [
    '../_base_/models/transformer_512.py',
    '../_base_/datasets/multi30k_bs64.py',
    '../_base_/schedules/translation_3e.py',
    '../../../../configs/_base_/default_runtime.py',
]

# Ours: divided by the square root of a head's width, where the paper has 1.
model = dict(attention=dict(eps=64**0.5))
randomness = dict(seed=0)
