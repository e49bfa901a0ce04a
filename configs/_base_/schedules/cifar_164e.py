# Table 6: SGD, lr 0.1 at batch 128, x0.1 after 81 and 122 of 164 epochs.
_base_ = ['mmpretrain::_base_/schedules/cifar10_bs128.py']

param_scheduler = dict(milestones=[81, 122])
train_cfg = dict(max_epochs=164)
