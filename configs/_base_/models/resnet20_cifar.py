# ResNet-20 for 32x32 images, 3 basic blocks a stage.
model = dict(
    type='ImageClassifier',
    backbone=dict(type='mmstepnet.StepResNetCIFAR', depth=20),
    neck=dict(type='GlobalAveragePooling'),
    head=dict(
        type='LinearClsHead',
        num_classes=10,
        in_channels=64,
        loss=dict(type='CrossEntropyLoss', loss_weight=1.0),
    ),
)
