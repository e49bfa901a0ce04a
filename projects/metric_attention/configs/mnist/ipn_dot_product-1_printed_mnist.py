_base_ = ['./ipn_metric-1_printed_mnist.py']

model = dict(
    network=dict(propagation=dict(pseudo_metric=dict(type='DotProduct')))
)
