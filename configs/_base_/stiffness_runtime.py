# MMPretrain's runtime; the test leaves the stiffness of the trained network
# on the test images in stiffness/stiffness_test.npz.
_base_ = ['mmpretrain::_base_/default_runtime.py']

custom_hooks = [
    dict(type='mmstepnet.StiffnessHook', interval=None, figures=False)
]
