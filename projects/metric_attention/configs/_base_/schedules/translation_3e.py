# For CPU hours, a schedule of ours: Adam, a warm-up, then linearly to 0. All
# follows from the number of epochs, which is set here alone.
max_epochs = 3
warmup_epochs = max_epochs / 6

# CPUs with avx512_bf16 multiply matrices 2.3 times as fast in it.
optim_wrapper = dict(
    type='mmstepnet.AutocastOptimWrapper',
    optimizer=dict(type='Adam', lr=2e-4, betas=(0.9, 0.98), eps=1e-9),
    clip_grad=dict(max_norm=1.0),
)
param_scheduler = [
    dict(
        type='LinearLR',
        start_factor=0.01,
        by_epoch=True,
        begin=0,
        end=warmup_epochs,
        convert_to_iter_based=True,
    ),
    dict(
        type='PolyLR',
        power=1.0,
        by_epoch=True,
        begin=warmup_epochs,
        end=max_epochs,
        convert_to_iter_based=True,
    ),
]
# An epoch takes minutes: it can be resumed from its middle.
train_cfg = dict(
    type='mmstepnet.ResumableEpochLoop', max_epochs=max_epochs, val_interval=1
)
custom_hooks = [dict(type='mmstepnet.InterimCheckpointHook', interval=50)]
val_cfg = dict()
test_cfg = dict()
auto_scale_lr = dict(base_batch_size=64)
