_base_ = ['./transformer_metric_paper_multi30k.py']

model = dict(attention=dict(type='DotProductAttention'))
