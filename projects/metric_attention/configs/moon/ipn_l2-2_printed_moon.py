_base_ = ['./ipn_metric-2_printed_moon.py']

model = dict(network=dict(propagation=dict(pseudo_metric=dict(type='L2'))))
