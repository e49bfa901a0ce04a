"""Motions and definitions of the table of close encounters."""

import json

import numpy as np
import pytest

from mmstepnet.stiffness import stiffness_aware_index
from projects.reproduction import close_encounters as table
from projects.reproduction.three_body import Observations, observe
from tests.programs import call_tool


class Middle:
    """A generator that draws the middle of every interval but the first."""

    def uniform(self, low, high, size=None):
        if low < 0:
            return np.array([0.6, -0.3])
        return np.full(size or (), (low + high) / 2)[()]


def test_without_noise_the_triangle_turns():
    position, velocity = table.draw_motion(Middle())
    seen = observe(6.0, 0.1, position, velocity, table.MASSES)
    np.testing.assert_allclose(seen.distances, 3**0.5 * 1.05, rtol=1e-9)
    np.testing.assert_allclose(seen.position.sum(1), 0, atol=1e-9)
    assert np.linalg.norm(seen.position[-1] - seen.position[0]) > 1


def test_drawn_motions():
    starts = [table.draw_motion(np.random.default_rng([0, k]))
              for k in range(200)]
    radius = np.array([np.linalg.norm(position, axis=1)
                       for position, _ in starts])
    np.testing.assert_allclose(radius, radius[:, :1].repeat(3, 1))
    assert 0.9 < radius.min() < 0.91 and 1.19 < radius.max() < 1.2
    for position, velocity in starts:
        circular = (3**-0.5 / np.linalg.norm(position[0]))**0.5
        ahead = np.stack([-position[:, 1], position[:, 0]], 1)
        ahead *= circular / np.linalg.norm(position[0])
        assert (abs(velocity / ahead - 1) <= 0.2 + 1e-12).all()


def passing(nearest):
    """Bodies 0 and 1 pass each other, and 2 stands at distance 4."""
    time = np.arange(-100, 101) * 0.01
    x = np.stack([time, np.zeros_like(time)], 1)
    position = np.stack([
        x + [0, nearest / 2], -x - [0, nearest / 2],
        np.broadcast_to([0.0, 4.0], x.shape)
    ], 1)
    velocity = np.gradient(position, 0.01, axis=0)
    return Observations(time + 1, position, velocity, table.MASSES)


@pytest.mark.parametrize('nearest', [0.1, 0.3])
def test_definitions(nearest):
    seen = passing(nearest)
    time = seen.time[:-1] - 1
    distance = np.hypot(2 * time, nearest)
    start = np.hypot(2, nearest)
    found = table.close(seen)
    np.testing.assert_array_equal(found['distance'],
                                  distance < 0.1 * start)
    # The pair's centre of mass is the origin.
    np.testing.assert_array_equal(found['two-body'],
                                  (distance / 4)**3 < 0.01)
    index = stiffness_aware_index(seen.state, seen.time)
    np.testing.assert_array_equal(found['stiffness'],
                                  index > 10 * np.median(index))
    assert found['distance'].any() == (nearest == 0.1)


def test_stiffness_of_a_kick():
    seen = passing(0.3)
    seen.velocity[120:, 2] += 1e3
    where = table.close(seen)['stiffness']
    assert where.nonzero()[0].tolist() == [119]


def test_table(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(table, 'LENGTHS', (0.5, 1.0))
    out = tmp_path / 'new' / 'results.json'
    call_tool(table, '--count', 2, '--out', out)
    result = json.loads(out.read_text())
    assert result['count'] == 2 and result['energy_drift'] < 1e-9
    assert list(result['shares']) == ['0.5', '1']
    text = out.with_suffix('.md').read_text()
    assert '| 91.4% | 4.2% |' in text and text in capsys.readouterr().out
    # At first nobody meets anybody.
    assert result['shares']['1']['distance'] == {'simulations': 0, 'time': 0}
