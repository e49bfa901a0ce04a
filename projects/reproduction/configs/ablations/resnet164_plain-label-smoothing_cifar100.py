_base_ = ['../../../../configs/cifar100/resnet164_plain_cifar100.py']

model = dict(
    head=dict(
        loss=dict(
            _delete_=True,
            type='LabelSmoothLoss',
            label_smooth_val=0.1,
            mode='original',
        )
    )
)
