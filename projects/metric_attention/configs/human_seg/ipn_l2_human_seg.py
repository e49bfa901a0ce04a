_base_ = ['./ipn_metric_human_seg.py']

model = dict(network=dict(propagation=dict(type='L2Attention')))
