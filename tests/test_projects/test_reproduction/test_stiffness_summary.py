"""What a row keeps of a recording."""

import json

import numpy as np
import pytest

from mmstepnet.stiffness import FIELDS, MEANS, READINGS, Trajectories
from projects.reproduction.stiffness import summarise_stiffness

STAGES = np.array([0, 0, 1, 1, 1])
BLOCKS = [f'layer{s + 1}.{i}' for i, s in enumerate(STAGES)]


def write(path, step, **nsi):
    other = np.full_like(step, 3)
    record = {**dict.fromkeys(FIELDS, other), **nsi, 'step_mean': step}
    Trajectories(
        **record, stages=STAGES, blocks=BLOCKS, excluded=['layer1.0'],
        settings=dict(model='net', split='test', reading='adaptive',
                      dataset_size=len(step))).save(path)


def degrees(zeta):
    """(M1, M2) up to which each block of one image is stiff."""
    mean = np.array([zeta[STAGES == s].mean() for s in STAGES])
    return np.clip(zeta / mean - 1, 0, None), zeta


def test_a_summary(tmp_path):
    rng = np.random.default_rng(0)
    nsi = {name: rng.gamma(1.5, 1 + i, (60, 5)).astype(np.float32)
           for i, name in enumerate(READINGS)}
    step = rng.random((60, 5)).astype(np.float32)
    step[:, 1] = 0.25  # a constant gate has no correlation
    path = tmp_path / 'stiffness_test.npz'
    write(path, step, **nsi)
    found, run = summarise_stiffness(path), Trajectories.load(path)
    assert json.loads(json.dumps(found)) == found
    assert found['samples'] == 60 and found['blocks'] == BLOCKS
    assert found['stages'] == STAGES.tolist()
    np.testing.assert_allclose(
        found['nsi'], nsi['adaptive'].mean(0), rtol=1e-5)
    np.testing.assert_allclose(found['step'], step.mean(0), rtol=1e-5)
    for reading in READINGS:
        correlation = list(found['correlation'][reading])
        assert correlation.pop(1) is None
        assert correlation == pytest.approx([
            np.corrcoef(nsi[reading][:, k], step[:, k])[0, 1]
            for k in (0, 2, 3, 4)], rel=1e-4)
        # Along a trajectory; the first stage has two blocks.
        assert list(found['along'][reading]) == ['stage 2', 'all stages']
        for name, along in run.trajectory_correlations(reading).items():
            assert found['along'][reading][name] == pytest.approx(
                dict(mean=along.mean(), negative=(along < 0).mean()),
                rel=1e-4)
        for mu in MEANS:
            for key, value in (('p_hat', run.proportion), ('tns', run.tns)):
                assert found[key][reading][mu] == pytest.approx(
                    value(reading, mu), rel=1e-5)
        # Own grid, finer and to the same ends: where 1 % of images are stiff.
        widths, heights = np.swapaxes(
            [degrees(z) for z in nsi[reading].astype(float)], 0, 1)
        ends = [np.percentile(side.max(1), 99) for side in (widths, heights)]
        m1, m2 = ((np.arange(300) + 0.5) / 300 * end for end in ends)
        share = np.mean((m1[:, None, None, None] <= widths)
                        & (m2[:, None, None] <= heights), (2, 3))
        assert found['few_stiff'][reading] == pytest.approx(
            (share[share > 0] <= 0.1).mean(), abs=0.02)


def test_nothing_is_stiff(tmp_path):
    path = tmp_path / 'stiffness_test.npz'
    ones = np.ones((4, 5), np.float32)
    write(path, ones, adaptive=ones)
    found = summarise_stiffness(path)
    assert found['tns']['adaptive'] == {'stage': 0, 'all': 0}
    assert found['correlation']['adaptive'] == [None] * 5
