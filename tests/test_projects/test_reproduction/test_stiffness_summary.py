"""What a result keeps of a record, against loops over images and blocks."""

import json

import numpy as np
import pytest

from mmstepnet.stiffness import FIELDS, Trajectories
from projects.reproduction.stiffness import summarise_stiffness

STAGES = np.array([0, 0, 1, 1, 1])
BLOCKS = [f'layer{s + 1}.{i}' for i, s in enumerate(STAGES)]


def write(path, nsi, step):
    other = np.full_like(nsi, 3)
    record = {**dict.fromkeys(FIELDS, other), 'adaptive': nsi,
              'step_mean': step}
    Trajectories(
        **record, stages=STAGES, blocks=BLOCKS, excluded=['layer1.0'],
        settings=dict(model='net', split='test', reading='adaptive',
                      dataset_size=len(nsi))).save(path)


@pytest.fixture
def record(tmp_path):
    rng = np.random.default_rng(0)
    nsi = rng.gamma(1.5, 1, (60, 5)).astype(np.float32)
    step = rng.random((60, 5)).astype(np.float32)
    step[:, 1] = 0.25  # a constant gate has no correlation
    path = tmp_path / 'stiffness_test.npz'
    write(path, nsi, step)
    return path, nsi.astype(float), step.astype(float)


def degrees(zeta):
    """(M1, M2) up to which each block of one image is stiff."""
    mean = np.array([zeta[STAGES == s].mean() for s in STAGES])
    return np.clip(zeta / mean - 1, 0, None), zeta


def test_numbers(record):
    path, nsi, step = record
    found = summarise_stiffness(path)
    assert json.loads(json.dumps(found)) == found
    assert found['samples'] == 60 and found['blocks'] == BLOCKS
    assert found['stages'] == STAGES.tolist()
    np.testing.assert_allclose(found['nsi'], nsi.mean(0), rtol=1e-5)
    np.testing.assert_allclose(found['step'], step.mean(0), rtol=1e-5)
    for block in (0, 2, 3, 4):
        assert found['correlation'][block] == pytest.approx(
            np.corrcoef(nsi[:, block], step[:, block])[0, 1], rel=1e-4)
    assert found['correlation'][1] is None
    area = np.mean([np.prod(degrees(z), 0).mean() for z in nsi])
    assert found['p_hat'] == pytest.approx(area, rel=1e-5)
    # Union of rectangles [0, M1] x [0, M2], on a grid of midpoints.
    m1 = (np.arange(400) + 0.5) / 400 * 2
    m2 = (np.arange(400) + 0.5) / 400 * nsi.max()
    stiff = [np.any([(m1[:, None] <= w) & (m2 <= h)
                     for w, h in zip(*degrees(z))], 0) for z in nsi]
    assert found['tns'] == pytest.approx(
        np.mean(stiff) * 2 * nsi.max(), rel=0.02)


def test_share_of_degrees_with_few_stiff_blocks(record):
    path, nsi, _ = record
    found = summarise_stiffness(path)['few_stiff']
    # Own grid, finer and to the same ends: where 1 % of images are stiff.
    widths, heights = np.swapaxes([degrees(z) for z in nsi], 0, 1)
    ends = [np.percentile(side.max(1), 99) for side in (widths, heights)]
    m1, m2 = ((np.arange(300) + 0.5) / 300 * end for end in ends)
    share = np.mean((m1[:, None, None, None] <= widths)
                    & (m2[:, None, None] <= heights), (2, 3))
    assert found == pytest.approx(
        (share[share > 0] <= 0.1).mean(), abs=0.02)


def test_nothing_is_stiff(tmp_path):
    path = tmp_path / 'stiffness_test.npz'
    ones = np.ones((4, 5), np.float32)
    write(path, ones, ones)
    found = summarise_stiffness(path)
    assert found['tns'] == 0 and found['correlation'] == [None] * 5
