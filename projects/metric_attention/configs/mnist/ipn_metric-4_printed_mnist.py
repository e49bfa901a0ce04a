_base_ = ['./ipn_metric-1_printed_mnist.py']

model = dict(network=dict(depth=4))
