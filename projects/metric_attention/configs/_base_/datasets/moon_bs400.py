# As printed (arXiv 2412.18288, Appendix A): 400 points to train and 100 to
# test with, noise 0.2. All are the nodes of one graph: full batches, a
# reading.
_base_ = ['./moon_bs200.py']

train_dataloader = dict(batch_size=400, dataset=dict(size=400, noise=0.2))
val_dataloader = dict(batch_size=100, dataset=dict(size=100, noise=0.2))
test_dataloader = val_dataloader
