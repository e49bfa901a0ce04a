# ResNet-164 for 32x32 images, 18 bottlenecks a stage (Table 1).
model = dict(
    type='ImageClassifier',
    backbone=dict(type='mmstepnet.StepResNetCIFAR', depth=164),
    neck=dict(type='GlobalAveragePooling'),
    head=dict(
        type='LinearClsHead',
        num_classes=10,
        in_channels=256,
        loss=dict(type='CrossEntropyLoss', loss_weight=1.0),
    ),
)
