_base_ = [
    '../../../../configs/_base_/models/resnet164_cifar.py',
    '../_base_/datasets/cifar10_10k_bs128.py',
    '../_base_/schedules/small_6e.py',
    '../_base_/small_runtime.py',
]

# Where training passes, on 200 test images of each class.
val_dataloader = dict(dataset=dict(per_class=200))
custom_hooks = [
    dict(type='mmstepnet.StiffnessHook', figures=False),
    dict(type='mmstepnet.CompiledTrainingHook'),
]
custom_imports = dict(imports=['projects.autocast', 'projects.compiled'])
