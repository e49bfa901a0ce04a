# Table 6: SGD, lr 0.1 at batch 256, x0.1 after 30, 60 and 90 of 120 epochs.
_base_ = ['mmpretrain::_base_/schedules/imagenet_bs256.py']

train_cfg = dict(max_epochs=120)
