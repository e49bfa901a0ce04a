# A ViT small enough to be trained from scratch (Table 7): 7 layers of width
# 384, 8x8 patches an image. The paper gives no setting: all are readings.
# Without a class token, which in StepNet's form would see the image through
# the step alone.
model = dict(
    type='ImageClassifier',
    backbone=dict(
        type='mmstepnet.StepVisionTransformer',
        arch=dict(
            embed_dims=384,
            num_layers=7,
            num_heads=6,
            feedforward_channels=1536,
        ),
        img_size=32,
        patch_size=4,
        with_cls_token=False,
        out_type='avg_featmap',
        # The pooled features are normalised instead.
        final_norm=False,
    ),
    neck=None,
    head=dict(
        type='LinearClsHead',
        num_classes=10,
        in_channels=384,
        loss=dict(type='CrossEntropyLoss', loss_weight=1.0),
    ),
)
