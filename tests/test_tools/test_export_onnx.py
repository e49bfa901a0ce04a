"""The tool that writes ONNX files, with configs of both kinds."""

import re

import pytest
import torch

from mmstepnet.jobs.exporting import refusal
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


@pytest.mark.parametrize(
    'parts, part, why, text',
    [
        pytest.param(
            ['backbone', 'roi_head'],
            '',
            TypeError('None'),
            r'.* give --part backbone \(it does not run \(TypeError: None\); '
            r'give --size of images\)$',
            id='two stages',
        ),
        pytest.param(
            ['backbone', 'roi_head'],
            'neck',
            None,
            'it does not run .*; --part names .*: backbone, roi_head$',
            id='a part of two stages',
        ),
        pytest.param(
            ['backbone', 'head'],
            '',
            ValueError('224'),
            r'it needs --fixed-size \(224\); --part names .*backbone, head$',
            id='a classifier',
        ),
    ],
)
def test_a_refusal_speaks_of_the_tools_options(parts, part, why, text):
    model = torch.nn.ModuleDict({name: torch.nn.Identity() for name in parts})
    said = 'it needs dynamic_size=False'
    if 'roi_head' in parts:
        said = (
            'it does not run (TypeError: None); give size= and channels= of '
            'images'
        )
    error = RuntimeError(said)
    error.__cause__ = why
    assert re.match(text, refusal(model, part, error))
