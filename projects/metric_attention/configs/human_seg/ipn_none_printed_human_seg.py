# The control: S = I, nothing informs anything. Not in the paper.
_base_ = ['./ipn_metric-4_printed_human_seg.py']

model = dict(network=dict(depth=0))
