"""What a row keeps of a recording."""

import json

import numpy as np
import pytest

from mmstepnet.stiffness import MEANS, READINGS, Trajectories
from projects.reproduction.stiffness import summarise_stiffness
from tests.utils import recording_arrays

STAGES = np.array([0, 0, 1, 1, 1])


def summary(path, **values):
    """A recording, and what its file gives."""
    run = Trajectories(
        **{**recording_arrays(60, 5), 'stages': STAGES, **values}
    )
    run.save(path / 'stiffness_test.npz')
    return run, summarise_stiffness(path / 'stiffness_test.npz')


def degrees(zeta):
    """(M1, M2) up to which each block of one image is stiff."""
    mean = np.array([zeta[STAGES == s].mean() for s in STAGES])
    return np.clip(zeta / mean - 1, 0, None), zeta


def test_a_summary(tmp_path):
    step = np.random.default_rng(1).random((60, 5))
    step[:, 1] = 0.25  # a constant gate has no correlation
    run, found = summary(tmp_path, step_mean=step)
    assert json.loads(json.dumps(found)) == found
    assert found['samples'] == 60 and found['blocks'] == run.blocks
    assert found['stages'] == STAGES.tolist()
    np.testing.assert_allclose(found['nsi'], run.nsi().mean(0), rtol=1e-5)
    np.testing.assert_allclose(found['step'], step.mean(0), rtol=1e-5)
    for reading in READINGS:
        correlation = found['correlation'][reading]
        assert correlation[1] is None
        np.testing.assert_allclose(
            np.array(correlation, float),
            run.block_correlations(reading),
            rtol=1e-4,
        )
        # Along a trajectory; the first stage has two blocks.
        assert list(found['along'][reading]) == ['stage 2', 'all stages']
        for name, along in run.trajectory_correlations(reading).items():
            assert found['along'][reading][name] == pytest.approx(
                dict(mean=along.mean(), negative=(along < 0).mean()), rel=1e-4
            )
        for mu in MEANS:
            for key, value in (('p_hat', run.proportion), ('tns', run.tns)):
                assert found[key][reading][mu] == pytest.approx(
                    value(reading, mu), rel=1e-5
                )
        # Own grid, finer and to the same ends: where 1 % of images are stiff.
        widths, heights = np.swapaxes(
            [degrees(z) for z in run.nsi(reading).astype(float)], 0, 1
        )
        ends = [np.percentile(side.max(1), 99) for side in (widths, heights)]
        m1, m2 = ((np.arange(300) + 0.5) / 300 * end for end in ends)
        share = np.mean(
            (m1[:, None, None, None] <= widths)
            & (m2[:, None, None] <= heights),
            (2, 3),
        )
        assert found['few_stiff'][reading] == pytest.approx(
            (share[share > 0] <= 0.1).mean(), abs=0.02
        )


def test_nothing_is_stiff(tmp_path):
    _, found = summary(tmp_path, adaptive=np.ones((60, 5)))
    assert found['tns']['adaptive'] == {'stage': 0, 'all': 0}
    assert found['correlation']['adaptive'] == [None] * 5
