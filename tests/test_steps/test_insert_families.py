"""Steps in the networks of each library."""

import os
import sys

import pytest
import torch

from mmstepnet import remove_steps
from tests.families import family_cases, find_family
from tests.programs import run_tool
from tests.utils import with_moved_steps

from .insertion import check_compiles, check_insertion, check_recorder, doubled


@pytest.mark.parametrize('library, name', family_cases())
def test_insertion_keeps_the_network(library, name):
    family = find_family(library, name)
    model, options = family.build(), dict(family.options)
    assert (
        len(check_insertion(model, family.inputs(), **options))
        == family.blocks
    )
    inputs = doubled(family.inputs())
    check_compiles(model, inputs)
    if family.recorded:
        remove_steps(model)
        example = inputs if 'example' in options else None
        check_recorder(model, inputs, example)


FRESH = """
import sys, torch
for model, inputs, wanted in torch.load(sys.argv[1], weights_only=False):
    # Small maps are fused in the tests alone, which rounds in its own way.
    torch.testing.assert_close(model(inputs), wanted, rtol=1e-10, atol=1e-10)
"""


def test_pickle_in_a_fresh_process(tmp_path):
    """Which has imported torch alone."""
    saved = []
    for name in 'ResNet, bottleneck', 'ViT':
        family = find_family('torchvision', name)
        model, inputs = family.build().double(), family.inputs().double()
        with_moved_steps(model).eval()
        saved.append((model, inputs, model(inputs).detach()))
    torch.save(saved, tmp_path / 'm.pth')
    run_tool(
        '-c', FRESH, tmp_path / 'm.pth', PYTHONPATH=os.pathsep.join(sys.path)
    )
