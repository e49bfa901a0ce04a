"""The tool that writes ONNX files, with configs of both kinds."""

import re

import pytest
import torch

from tests.checkpoints import save_model
from tests.documents import ROOT
from tests.programs import run_tool
from tests.utils import run_onnx

DETECTOR = 'configs/digits/faster_rcnn_r18_stepnet_digits.py'
CLASSIFIER = 'configs/digits/resnet20_stepnet_digits.py'


@pytest.mark.parametrize(
    'config, part',
    [
        (CLASSIFIER, ''),
        pytest.param(DETECTOR, 'backbone', marks=pytest.mark.slow),
    ],
)
def test_file(config, part, tmp_path):
    path = tmp_path / 'model.onnx'
    model = save_model(tmp_path / 'model.pth', ROOT / config)
    done = run_tool(
        'tools/export_onnx.py',
        ROOT / config,
        tmp_path / 'model.pth',
        path,
        '--size',
        32,
        32,
        *(['--part', part] if part else []),
    )
    assert re.search(
        r'model.onnx: \S+ MiB, differs from PyTorch by', done.stdout
    )
    images = torch.randn(1, 3, 64, 96)
    with torch.no_grad():
        wanted = (
            model.get_submodule(part)(images)
            if part
            else [model(images, mode='tensor')]
        )
    found = run_onnx(path, images=images)
    assert len(found) == len(wanted) == (4 if part else 1)
    for a, b in zip(found, wanted):
        torch.testing.assert_close(
            a, b, rtol=1e-3, atol=1e-4 * float(b.abs().max())
        )
