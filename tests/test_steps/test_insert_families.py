"""Steps in the networks of each library."""

import os
import sys
from importlib.util import find_spec

import pytest
import torch

from mmstepnet import remove_steps
from tests.programs import run_tool

from .families import LIBRARIES, QUICK, find_family
from .insertion import (
    check_compiles,
    check_insertion,
    check_recorder,
    with_moved_steps,
)

FOUND = {library: families() for library, families in LIBRARIES.items()
         if find_spec(library)}
CASES = [
    pytest.param(library, name,
                 marks=() if name in QUICK else pytest.mark.slow)
    for library, families in FOUND.items() for name in families
]


@pytest.mark.parametrize('library, name', CASES)
def test_insertion_keeps_the_network(library, name):
    family = find_family(library, name)
    model, inputs = family.build(), family.inputs()
    assert len(check_insertion(
        model, inputs, **dict(family.options))) == family.blocks
    check_compiles(model, inputs)
    if family.recorded:
        remove_steps(model)
        check_recorder(
            model, inputs, dict(family.options).get('example'))


FRESH = """
import sys, torch
model, inputs, wanted = torch.load(sys.argv[1], weights_only=False)
# Small maps are fused in the tests alone, which rounds in its own way.
torch.testing.assert_close(model(inputs), wanted, rtol=1e-5, atol=1e-6)
"""


@pytest.mark.parametrize('name', ['ResNet, bottleneck', 'ViT'])
def test_pickle_in_a_fresh_process(name, tmp_path):
    """Which has imported torch alone."""
    family = FOUND['torchvision'][name]
    model, inputs = family.build(), family.inputs()
    with_moved_steps(model).eval()
    torch.save((model, inputs, model(inputs).detach()), tmp_path / 'm.pth')
    run_tool('-c', FRESH, tmp_path / 'm.pth',
             PYTHONPATH=os.pathsep.join(sys.path))
