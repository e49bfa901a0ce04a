# As printed (arXiv 2412.18288, Table 2): Adam and weight decay. That the rate
# is constant is a reading, as the epochs of each config are.
_base_ = ['./ipn_adam.py']

optim_wrapper = dict(optimizer=dict(lr=1e-3, weight_decay=1e-4))
