_base_ = ['./transformer_metric_multi30k.py']

model = dict(attention=dict(type='DotProductAttention'))
