"""Steps in the networks of each library."""

from importlib.util import find_spec

import pytest

from mmstepnet import remove_steps

from .families import LIBRARIES, QUICK, find_family
from .insertion import (
    check_compiles,
    check_fresh_process,
    check_insertion,
    check_recorder,
)

PICKLED = {
    'torchvision': ('ResNet, bottleneck', 'ViT', 'EfficientNet'),
    'timm': ('ResNet, basic', 'ViT', 'Swin'),
    'transformers': ('ResNet, basic', 'DINOv2'),
    'mmpretrain': ('mmpretrain ResNet-18', 'mmpretrain Swin'),
}
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
    row = check_insertion(model, inputs, **dict(family.options))
    assert len(row['blocks']) == family.blocks
    assert row['eval'] <= 1e-5
    assert row['train'] <= 1e-5
    check_compiles(model, inputs)
    if family.recorded:
        remove_steps(model)
        check_recorder(
            model, inputs, dict(family.options).get('example'))


@pytest.mark.parametrize('library', PICKLED)
def test_pickle_in_a_fresh_process(library, tmp_path):
    pytest.importorskip(library)
    check_fresh_process(tmp_path / 'models.pth', [
        (FOUND[library][name].build(), FOUND[library][name].inputs())
        for name in PICKLED[library]])
