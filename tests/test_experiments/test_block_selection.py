"""Stiffness of blocks against a grid of thresholds."""

import numpy as np
import pytest
import torch

from mmstepnet.experiments.block_selection import (
    backbone_names,
    block_stiffness,
    stiffest_blocks,
)
from mmstepnet.stiffness import total_stiffness_proportion

STAGES = torch.tensor([0, 0, 0, 1, 1, 2])


def test_area_of_thresholds():
    """Eq. 5's condition, block by block, on a grid of degrees."""
    nsi = torch.rand(5, 6, generator=torch.Generator().manual_seed(0))
    got = block_stiffness(nsi, STAGES).numpy()
    zeta, stages = nsi.double().numpy(), STAGES.numpy()
    step = 2e-3
    m = np.arange(step / 2, 2, step)
    expected = np.zeros(6)
    for t in range(6):
        for sample in zeta:
            mean = sample[stages == stages[t]].mean()
            # The condition is a product of one in M1 and one in M2.
            expected[t] += ((sample[t] >= mean * (1 + m)).sum()
                            * (sample[t] >= m).sum()) * step**2 / len(zeta)
    np.testing.assert_allclose(got, expected, atol=5e-3)
    assert got[5] == 0 and (got[:5] > 0).all()


def test_sums_to_the_total_proportion():
    nsi = torch.rand(7, 6, generator=torch.Generator().manual_seed(1)).double()
    total = total_stiffness_proportion(nsi, STAGES)
    torch.testing.assert_close(
        block_stiffness(nsi, STAGES).sum() / 6, total.mean())


def test_blocks_at_rest():
    assert (block_stiffness(torch.zeros(2, 6), STAGES) == 0).all()


def test_choice_keeps_the_networks_order():
    names = list('abcdef')
    stiffness = torch.tensor([1., 5., 0., 2., 4., 3.])
    assert stiffest_blocks(names, stiffness, 3) == ['b', 'e', 'f']
    for count in (0, 6):
        with pytest.raises(ValueError, match='5 of the 6'):
            stiffest_blocks(names, stiffness, count)


def test_names():
    assert backbone_names(['backbone.layer1.2', 'layer3.17']) == [
        'layer1.2', 'layer3.17']
    with pytest.raises(ValueError, match='stages.0.1'):
        backbone_names(['backbone.stages.0.1'])
