# Ours: Adam with a constant rate, the test set after every epoch, for the
# curves. What the paper prints is in ipn_printed.py.
optim_wrapper = dict(optimizer=dict(type='Adam', lr=1e-2))
param_scheduler = []
train_cfg = dict(by_epoch=True, val_interval=1)
val_cfg = dict()
test_cfg = dict()
# The curve of the training loss is its mean over each epoch.
log_processor = dict(
    custom_cfg=[dict(data_src='loss', method_name='mean', window_size='epoch')]
)
