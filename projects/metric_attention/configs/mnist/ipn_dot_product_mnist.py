_base_ = ['./ipn_metric_mnist.py']

model = dict(network=dict(propagation=dict(type='DotProductAttention')))
