"""The calibration hook on detectors whose data are branches."""

import copy
import logging
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mmengine.config import Config, ConfigDict
from mmengine.registry import MODELS, init_default_scope
from mmengine.structures import InstanceData

from mmstepnet import calibrate
from mmstepnet.engine.hooks import AttentionBNCalibrationHook
from tests.documents import ROOT

pytest.importorskip('mmdet')

from mmdet.structures import DetDataSample  # noqa: E402
from mmdet.structures.bbox import HorizontalBoxes  # noqa: E402

SEEN_BY = dict(sup='student', unsup_student='student', unsup_teacher='teacher')


def sample():
    """A picture with one box."""
    found = DetDataSample(
        metainfo=dict(
            img_shape=(64, 64),
            ori_shape=(64, 64),
            scale_factor=(1.0, 1.0),
            homography_matrix=np.eye(3, dtype=np.float32),
        )
    )
    found.gt_instances = InstanceData(
        bboxes=HorizontalBoxes(torch.tensor([[8.0, 8.0, 40.0, 40.0]])),
        labels=torch.tensor([1]),
    )
    return found


def semi_supervised(kind):
    """A detector of digits that learns from its own boxes, and its batches."""
    init_default_scope('mmdet')
    detector = Config.fromfile(
        ROOT / 'configs/digits/faster_rcnn_r18_stepnet_digits.py'
    ).model
    detector.backbone.attention = dict(type='StepNet', init_step=1.0)
    detector.test_cfg.rpn.max_per_img = 20  # few boxes are quick
    torch.manual_seed(0)
    model = MODELS.build(
        dict(
            type=kind,
            detector=detector,
            data_preprocessor=dict(
                type='MultiBranchDataPreprocessor',
                data_preprocessor=detector.data_preprocessor,
            ),
            semi_train_cfg=ConfigDict(
                freeze_teacher=True,
                sup_weight=1.0,
                unsup_weight=4.0,
                pseudo_label_initial_score_thr=0.5,
                rpn_pseudo_thr=0.9,
                cls_pseudo_thr=0.9,
                reg_pseudo_thr=0.02,
                jitter_times=2,
                jitter_scale=0.06,
                min_pseudo_bbox_wh=(1e-2, 1e-2),
            ),
            semi_test_cfg=dict(predict_on='teacher'),
        )
    )
    batches = [
        dict(
            inputs={
                branch: [
                    torch.randint(255, (3, 64, 64)).byte() for _ in range(2)
                ]
                for branch in SEEN_BY
            },
            data_samples={branch: [sample(), sample()] for branch in SEEN_BY},
        )
        for _ in range(2)
    ]
    return model, batches


@pytest.mark.parametrize('kind', ['SoftTeacher', 'SemiBaseDetector'])
def test_branches(kind, monkeypatch):
    """Each detector's gates get statistics of the pictures that it is given.

    At the start the gates change nothing, so they are those of its features.
    """
    model, batches = semi_supervised(kind)
    assert not any(p.requires_grad for p in model.teacher.parameters())
    alone = {
        name: copy.deepcopy(getattr(model, name))
        for name in ('student', 'teacher')
    }
    hook = AttentionBNCalibrationHook()
    monkeypatch.setattr(
        hook, '_batches', lambda runner: copy.deepcopy(batches)
    )
    hook.before_train(
        SimpleNamespace(model=model, logger=logging.getLogger(__name__))
    )
    for name, detector in alone.items():
        given = [
            model.data_preprocessor(copy.deepcopy(batch), True)['inputs'][
                branch
            ]
            for branch, who in SEEN_BY.items()
            if who == name
            for batch in batches
        ]
        assert (
            calibrate(
                detector,
                given,
                forward=lambda detector, images: detector.extract_feat(images),
            )
            > 3
        )
        wanted = {
            key: t
            for key, t in detector.state_dict().items()
            if 'attention.bn.running' in key
        }
        found = getattr(model, name).state_dict()
        torch.testing.assert_close(
            {key: found[key] for key in wanted}, wanted, rtol=1e-3, atol=1e-6
        )
        assert all(t.any() for t in wanted.values())
