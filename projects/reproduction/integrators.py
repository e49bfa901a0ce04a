"""Why a stiff system needs small steps: Euler, RK4 and RKF45.

examples/stiff_systems.ipynb draws them.

Section 2.1.2 of https://arxiv.org/abs/2308.09939 takes attention for an
adaptive step, as Runge and Kutta's method became Fehlberg's. Two systems: the
affine one of Theorem 2, of rates -50, -2 and -1; and Burrau's three bodies up
to their first close encounter (Section 3.1). A residual block is a step of
Euler's method.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.integrate import solve_ivp
from scipy.linalg import expm

Rhs = Callable[[np.ndarray], np.ndarray]


class Method(NamedTuple):
    """An explicit method by its tableau.

    Attributes:
        stages (Sequence): Weights of the slopes before each, stage by stage.
        weights (Sequence): Of all slopes.
        order (int): Its order.
    """

    stages: Sequence[Sequence[float]]
    weights: Sequence[float]
    order: int


EULER = Method([[]], [1.0], 1)
RK4 = Method(
    [[], [1 / 2], [0, 1 / 2], [0, 0, 1]], [1 / 6, 1 / 3, 1 / 3, 1 / 6], 4
)
FEHLBERG = Method(
    [
        [],
        [1 / 4],
        [3 / 32, 9 / 32],
        [1932 / 2197, -7200 / 2197, 7296 / 2197],
        [439 / 216, -8, 3680 / 513, -845 / 4104],
        [-8 / 27, 2, -3544 / 2565, 1859 / 4104, -11 / 40],
    ],
    [25 / 216, 0, 1408 / 2565, 2197 / 4104, -1 / 5, 0],
    4,
)
"""Of fourth order; :data:`FIFTH` are its weights of fifth order."""

FIFTH = [16 / 135, 0, 6656 / 12825, 28561 / 56430, -9 / 50, 2 / 55]


def slopes(rhs: Rhs, u: np.ndarray, step: float, method: Method) -> np.ndarray:
    """Evaluate the stages, (S, d)."""
    found = []
    for row in method.stages:
        shift = sum((a * k for a, k in zip(row, found)), np.zeros_like(u))
        found.append(rhs(u + step * shift))
    return np.stack(found)


def fixed_steps(
    rhs: Rhs, u: np.ndarray, end: float, steps: int, method: Method
) -> np.ndarray:
    """Integrate to ``end`` by steps of one length, (steps + 1, d)."""
    states, step = [u], end / steps
    with np.errstate(over='ignore', invalid='ignore'):
        for _ in range(steps):
            u = u + step * np.asarray(method.weights) @ slopes(
                rhs, u, step, method
            )
            states.append(u)
    return np.stack(states)


def adaptive_steps(
    rhs: Rhs, u: np.ndarray, end: float, tolerance: float
) -> tuple[np.ndarray, np.ndarray, int]:
    """Integrate by Fehlberg's method, which chooses its steps.

    A step is taken if the two orders differ by less than the tolerance,
    relative to the state; the next one is chosen by that difference.

    Returns:
        tuple: Times (T,), states (T, d), and evaluations of ``rhs``.
    """
    times, states, evaluations = [0.0], [u], 0
    step = end / 100
    gap = np.subtract(FIFTH, FEHLBERG.weights)
    while times[-1] < end:
        step = min(step, end - times[-1])
        k = slopes(rhs, u, step, FEHLBERG)
        evaluations += len(k)
        error = step * np.linalg.norm(gap @ k) / np.linalg.norm(u)
        if error <= tolerance:
            u = u + step * np.asarray(FIFTH) @ k
            times.append(times[-1] + step)
            states.append(u)
        step *= min(
            4.0, max(0.1, 0.9 * (tolerance / max(error, 1e-300)) ** 0.2)
        )
    return np.array(times), np.stack(states), evaluations


class System(NamedTuple):
    """A system with its solution at the end.

    Attributes:
        name (str): Its name.
        rhs (Callable): (d,) -> (d,).
        start (ndarray): (d,).
        end (float): Time.
        solution (ndarray): (d,).
    """

    name: str
    rhs: Rhs
    start: np.ndarray
    end: float
    solution: np.ndarray


MASSES = np.array([3.0, 4.0, 5.0])
START = np.array([[1.0, 3.0], [-2.0, -1.0], [1.0, -1.0]])
"""Of Burrau's problem: at rest on the corners of the Pythagorean triangle."""


def motion(state: np.ndarray) -> np.ndarray:
    """Newton's law with G = 1, of three positions and velocities, (12,)."""
    position, velocity = state.reshape(2, 3, 2)
    apart = position - position[:, None]
    cubed = (apart**2).sum(-1) ** 1.5
    np.fill_diagonal(cubed, np.inf)
    acceleration = (MASSES[:, None] * apart / cubed[..., None]).sum(1)
    return np.concatenate([velocity, acceleration]).ravel()


RATES = np.array([-50.0, -2.0, -1.0])
DRIVE = np.array([50.0, -0.5, 0.5])


def affine(end: float = 2.0) -> System:
    """Of u' = λ u + a, from 2 in each coordinate."""
    start = np.full(3, 2.0)
    matrix = np.zeros((4, 4))
    matrix[:3, :3], matrix[:3, 3] = np.diag(RATES), DRIVE
    solution = (expm(end * matrix) @ np.append(start, 1.0))[:3]
    return System(
        'affine, SI 50', lambda u: RATES * u + DRIVE, start, end, solution
    )


def three_bodies(end: float = 1.9) -> System:
    """Burrau's problem, whose first encounter is at 1.88."""
    start = np.concatenate([START, np.zeros((3, 2))]).ravel()
    found = solve_ivp(
        lambda _, u: motion(u),
        (0, end),
        start,
        'DOP853',
        rtol=1e-13,
        atol=1e-13,
    )
    return System('three bodies', motion, start, end, found.y[:, -1])


STEPS = (40, 80, 160, 640, 2560, 10240)
TOLERANCES = (1e-3, 1e-5, 1e-7, 1e-9, 1e-11)


def efficiency(system: System) -> dict[str, list[tuple[int, float]]]:
    """Evaluations of the right side, and relative error at the end."""

    def error(state: np.ndarray) -> float:
        gap = np.linalg.norm(state - system.solution)
        return gap / np.linalg.norm(system.solution)

    found = {}
    for name, method in (('Euler', EULER), ('RK4', RK4)):
        found[name] = [
            (
                n * len(method.stages),
                error(
                    fixed_steps(
                        system.rhs, system.start, system.end, n, method
                    )[-1]
                ),
            )
            for n in STEPS
        ]
    found['RKF45'] = []
    for tolerance in TOLERANCES:
        _, states, count = adaptive_steps(
            system.rhs, system.start, system.end, tolerance
        )
        found['RKF45'].append((count, error(states[-1])))
    return found
