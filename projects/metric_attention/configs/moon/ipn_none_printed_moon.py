# The control: S = I, nothing informs anything. Not in the paper.
_base_ = ['./ipn_metric-1_printed_moon.py']

model = dict(network=dict(depth=0))
