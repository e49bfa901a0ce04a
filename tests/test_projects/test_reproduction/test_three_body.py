"""The worked example against what is known of Burrau's problem."""

import numpy as np
import pytest

from mmstepnet.stiffness import stiffness_aware_index
from projects.reproduction import three_body
from tests.programs import run_tool


@pytest.fixture(scope='module')
def seen():
    return three_body.observe(20.0, 0.01)


def test_conserved_quantities(seen):
    # At rest, each mass opposite to the side of its own length.
    assert seen.energy[0] == pytest.approx(-(20 / 3 + 15 / 4 + 12 / 5))
    np.testing.assert_allclose(seen.energy, seen.energy[0], rtol=1e-7)
    x, y = np.moveaxis(seen.position, -1, 0)
    u, v = np.moveaxis(seen.velocity, -1, 0)
    spin = (three_body.MASSES * (x * v - y * u)).sum(1)
    np.testing.assert_allclose(spin, 0, atol=1e-7)
    centre = np.einsum('b,tbd->td', three_body.MASSES, seen.position)
    np.testing.assert_allclose(centre, 0, atol=1e-8)


def test_closest_encounter(seen):
    """At 15.83, as Szebehely and Peters (1967) found."""
    assert seen.time[seen.nearest.argmin()] == pytest.approx(15.83, abs=0.006)


def test_close_encounters_are_few_and_stiff(seen):
    index = stiffness_aware_index(seen.state, seen.time)
    near = seen.nearest[:-1] < 0.2
    assert 0 < near.mean() < 0.05
    assert np.median(index[near]) > 10 * np.median(index[~near])
    assert near[index.argmax()]


def test_tool_draws(tmp_path):
    out = tmp_path / 'new' / 'picture.png'
    result = run_tool('projects/reproduction/three_body.py', '--out', out,
                      '--end', 5)
    assert 'close encounters:' in result.stdout
    assert out.read_bytes().startswith(b'\x89PNG')
