_base_ = ['./ipn_metric-4_printed_human_seg.py']

model = dict(network=dict(propagation=dict(pseudo_metric=dict(type='L2'))))
