# Faster R-CNN for small machines, trained from scratch: ResNet-18 with
# trainable BN, a narrow FPN and a narrow head.
_base_ = ['mmdet::_base_/models/faster-rcnn_r50_fpn.py']

model = dict(
    backbone=dict(
        type='mmstepnet.StepResNet',
        depth=18,
        frozen_stages=-1,
        norm_eval=False,
        init_cfg=[
            dict(type='Kaiming', layer='Conv2d'),
            dict(type='Constant', val=1, layer='_BatchNorm'),
        ],
    ),
    neck=dict(in_channels=[64, 128, 256, 512], out_channels=64),
    rpn_head=dict(
        in_channels=64, feat_channels=64, anchor_generator=dict(scales=[4])
    ),
    roi_head=dict(
        bbox_roi_extractor=dict(out_channels=64),
        bbox_head=dict(in_channels=64, fc_out_channels=256),
    ),
    train_cfg=dict(
        rpn_proposal=dict(nms_pre=500, max_per_img=300),
        rcnn=dict(sampler=dict(num=128)),
    ),
    test_cfg=dict(rpn=dict(nms_pre=500, max_per_img=300)),
)
