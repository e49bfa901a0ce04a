_base_ = ['./ipn_metric_moon.py']

model = dict(network=dict(propagation=dict(type='L2Attention')))
