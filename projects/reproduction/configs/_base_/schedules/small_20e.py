# The paper's optimiser; after one epoch of warm-up, 79 iterations at batch
# 128, the learning rate falls along a cosine.
_base_ = ['../../../../../configs/_base_/schedules/digits_20e.py']

custom_imports = dict(
    imports=['projects.autocast'], allow_failed_imports=False
)

# Half of float32's time on CPUs with avx512_bf16; tested in float32.
optim_wrapper = dict(type='mmstepnet.AutocastOptimWrapper')
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=79),
    dict(
        type='CosineAnnealingLR',
        by_epoch=True,
        begin=1,
        end=20,
        T_max=19,
        convert_to_iter_based=True,
    ),
]
auto_scale_lr = dict(base_batch_size=128)
