_base_ = ['./resnet20_plain_digits16.py']

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
