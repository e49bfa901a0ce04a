"""Runge, Kutta and Fehlberg against exact solutions and SciPy."""

import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.stats import spearmanr

from mmstepnet.stiffness import stiffness_aware_index
from projects.reproduction.integrators import (
    EULER,
    FEHLBERG,
    FIFTH,
    RK4,
    Method,
    adaptive_steps,
    affine,
    fixed_steps,
    three_bodies,
)


def swing(u):
    """Of a pendulum, (2,) -> (2,)."""
    return np.array([u[1], -np.sin(u[0])])


START = np.array([1.5, 0.3])


@pytest.mark.parametrize(
    'method',
    [EULER, RK4, FEHLBERG, Method(FEHLBERG.stages, FIFTH, 5)],
    ids=['Euler', 'RK4', 'fourth', 'fifth'],
)
def test_order(method):
    exact = solve_ivp(
        lambda _, u: swing(u), (0, 2), START, 'DOP853', rtol=1e-13, atol=1e-14
    ).y[:, -1]
    errors = [
        np.linalg.norm(fixed_steps(swing, START, 2.0, n, method)[-1] - exact)
        for n in (20, 40, 80)
    ]
    orders = np.log2(np.divide(errors[:-1], errors[1:]))
    assert orders[-1] == pytest.approx(method.order, abs=0.25)


def test_adaptive_steps_keep_their_tolerance():
    system = affine()
    times, states, count = adaptive_steps(
        system.rhs, system.start, system.end, 1e-8
    )
    assert times[-1] == pytest.approx(system.end)
    np.testing.assert_allclose(states[-1], system.solution, rtol=1e-6)
    # The transient is at the start.
    assert np.diff(times)[:3].max() < 0.2 * np.diff(times).max()
    assert 6 * len(np.diff(times)) <= count < 12 * len(times)


def test_steps_follow_the_index():
    """Of three bodies; the method knows nothing of it."""
    bodies = three_bodies()
    times, states, _ = adaptive_steps(
        bodies.rhs, bodies.start, bodies.end, 1e-9
    )
    rho = spearmanr(stiffness_aware_index(states, times), np.diff(times))
    assert rho.statistic < -0.99
