"""Steps in the networks of each library."""

from importlib.util import find_spec

import pytest

from mmstepnet import remove_steps

from .families import (
    QUICK,
    openmmlab_families,
    timm_families,
    torchvision_families,
    transformers_families,
)
from .insertion import (
    check_compiles,
    check_fresh_process,
    check_insertion,
    check_recorder,
)

LIBRARIES = {
    'torchvision': (torchvision_families,
                    ('ResNet, bottleneck', 'ViT', 'EfficientNet')),
    'timm': (timm_families, ('ResNet, basic', 'ViT', 'Swin')),
    'transformers': (transformers_families, ('ResNet, basic', 'DINOv2')),
    'mmpretrain': (openmmlab_families,
                   ('mmpretrain ResNet-18', 'mmpretrain Swin')),
}
"""Families of a library, and those that are pickled."""

FOUND = {library: families() for library, (families, _) in LIBRARIES.items()
         if find_spec(library)}
CASES = [
    pytest.param(library, name,
                 marks=() if name in QUICK else pytest.mark.slow)
    for library, families in FOUND.items() for name in families
]


@pytest.mark.parametrize('library, name', CASES)
def test_insertion_keeps_the_network(library, name):
    if library == 'mmpretrain':  # and MMDetection or MMSegmentation
        pytest.importorskip(name.split()[0])
    family = FOUND[library][name]
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


@pytest.mark.parametrize('library', LIBRARIES)
def test_pickle_in_a_fresh_process(library, tmp_path):
    pytest.importorskip(library)
    check_fresh_process(tmp_path / 'models.pth', [
        (FOUND[library][name].build(), FOUND[library][name].inputs())
        for name in LIBRARIES[library][1]])
