_base_ = ['./transformer_metric_printed_multi30k.py']

model = dict(attention=dict(type='DotProductAttention'))
