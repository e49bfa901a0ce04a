"""Steps in the networks of torchvision."""

import pytest

from mmstepnet import remove_steps

from .families import cases, torchvision_families
from .insertion import (
    check_compiles,
    check_fresh_process,
    check_insertion,
    check_recorder,
)

pytest.importorskip('torchvision', reason='needs torchvision')

FAMILIES = torchvision_families()


@pytest.mark.parametrize('name', cases(FAMILIES))
def test_insertion_keeps_the_network(name):
    family = FAMILIES[name]
    model, inputs = family.build(), family.inputs()
    row = check_insertion(model, inputs, **dict(family.options))
    assert len(row['blocks']) == family.blocks
    assert row['eval'] <= 1e-5
    assert row['train'] <= 1e-5
    check_compiles(model, inputs)
    if family.recorded:
        remove_steps(model)
        check_recorder(model, inputs)


def test_pickle_in_a_fresh_process(tmp_path):
    check_fresh_process(tmp_path / 'models.pth', [
        (FAMILIES[name].build(), FAMILIES[name].inputs())
        for name in ('ResNet, bottleneck', 'ViT', 'EfficientNet')])
