# As printed (arXiv 2412.18288, Table 2 and Appendix A): Adam, 1e-5, weight
# decay 5e-4, ReduceLROnPlateau. The rest is a reading: 100 epochs, batches of
# 128, clipped gradients, the plateau's factor. It mixes two versions of the
# implementation that the paper adapts, whose dot product has 1/sqrt(d), and
# whose BLEU is teacher-forced.
optim_wrapper = dict(
    optimizer=dict(type='Adam', lr=1e-5, weight_decay=5e-4),
    clip_grad=dict(max_norm=1.0),
)
param_scheduler = dict(
    type='ReduceOnPlateauLR',
    monitor='translation/loss',
    rule='less',
    factor=0.8,
    patience=10,
)
train_cfg = dict(
    type='mmstepnet.ResumableEpochLoop', max_epochs=100, val_interval=1
)
custom_hooks = [dict(type='mmstepnet.InterimCheckpointHook', interval=50)]
val_cfg = dict()
test_cfg = dict()
auto_scale_lr = dict(base_batch_size=128)
