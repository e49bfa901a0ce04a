"""What tools/test.py --show-dir makes a host draw."""

from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import HOOKS, VISUALIZERS, init_default_scope
from mmengine.structures import InstanceData

from tests.documents import ROOT, snippets

GREY = 128


def test_boxes_have_the_colours_and_scores_of_the_documented_config(tmp_path):
    """A colour for each class, and no box below the score of the page."""
    pytest.importorskip('mmdet')
    from mmdet.datasets import CocoDataset
    from mmdet.structures import DetDataSample

    page = ROOT / 'docs' / 'detection_warm_start.md'
    (documented,) = [s for s in snippets(page, 'python') if 'metainfo' in s]
    cfg = Config.fromstring(documented, '.py')
    hook = 'default_hooks.visualization.'
    cfg.merge_from_dict(
        {
            f'{hook}score_thr': 0.5,
            f'{hook}draw': True,  # as --show-dir sets it
            f'{hook}test_out_dir': str(tmp_path / 'shown'),
        }
    )
    init_default_scope('mmdet')
    visualizer = VISUALIZERS.build(
        dict(cfg.visualizer, name=str(tmp_path), vis_backends=[])
    )
    dataset = CocoDataset('', metainfo=cfg.metainfo, lazy_init=True)
    visualizer.dataset_meta = dataset.metainfo
    hook = HOOKS.build(cfg.default_hooks.visualization)

    path = tmp_path / 'cells.png'
    cv2.imwrite(str(path), np.full((120, 330, 3), GREY, np.uint8))
    sample = DetDataSample(metainfo=dict(img_path=str(path)))
    lefts = torch.tensor([10.0, 120.0, 230.0])
    sample.pred_instances = InstanceData(
        bboxes=torch.stack(
            [lefts, lefts * 0 + 40, lefts + 80, lefts * 0 + 100], 1
        ),
        labels=torch.arange(3),
        scores=torch.tensor([0.9, 0.51, 0.49]),
    )
    hook.after_test_iter(
        SimpleNamespace(work_dir=str(tmp_path), timestamp='now'),
        0,
        {},
        [sample],
    )
    picture = cv2.imread(str(tmp_path / 'shown' / 'cells.png'))[..., ::-1]
    found = picture[:, 330:]  # beside the boxes of the annotations
    # In the middle of the lower edges; they let some of the picture through.
    red, blue, left_out = (found[98:103, x] for x in (50, 160, 270))
    assert np.ptp(left_out) == 0 and left_out[0, 0] == GREY
    for edge, color in ((red, 0), (blue, 2)):
        strongest = edge[np.ptp(edge, 1).argmax()]
        assert strongest.argmax() == color and np.ptp(strongest) > 60
