_base_ = ['./resnet20_stepnet_digits.py']

# A constant a channel, learned: the control of a gate. It starts at StepNet's
# start and stands in StepNet's blocks. Weight decay would draw it towards 0.
model = dict(
    backbone=dict(
        first_block=False, attention=dict(type='LayerScale', initial=0.2689)
    )
)
optim_wrapper = dict(
    paramwise_cfg=dict(custom_keys={'step.attention.': dict(decay_mult=0)})
)
