"""Stiffness of a three-body problem, from observations alone.

A worked example of the stiffness-aware index (§2.1.2 and §3.1 of
https://arxiv.org/abs/2308.09939): bodies of mass 3, 4 and 5 start at rest at
the corners of the Pythagorean triangle (Burrau's problem). SciPy integrates
their motion; the index sees only observed positions and velocities. Its
peaks are the close encounters, which are few; close_encounters.py counts them
in 1,000 other motions.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.integrate import solve_ivp
from scipy.stats import spearmanr

from mmstepnet.checks import positive_float
from mmstepnet.stiffness import stiffness_aware_index
from projects.drawing import COLORS, paper_figure

MASSES = np.array([3.0, 4.0, 5.0])
START = np.array([[1.0, 3.0], [-2.0, -1.0], [1.0, -1.0]])
REST = np.zeros((3, 2))
PAIRS = ((0, 1), (0, 2), (1, 2))


@dataclass
class Observations:
    """What is seen of the motion, with G = 1.

    Attributes:
        time (ndarray): Times, (T,).
        position (ndarray): Positions, (T, 3, 2).
        velocity (ndarray): Velocities, (T, 3, 2).
        masses (ndarray): Masses, (3,).
    """

    time: np.ndarray
    position: np.ndarray
    velocity: np.ndarray
    masses: np.ndarray

    @property
    def state(self) -> np.ndarray:
        """Positions and velocities, (T, 12)."""
        both = np.stack([self.position, self.velocity], 1)
        return both.reshape(len(self.time), -1)

    @property
    def distances(self) -> np.ndarray:
        """Distances of ``PAIRS``, (3, T)."""
        return np.stack([
            np.linalg.norm(self.position[:, i] - self.position[:, j], axis=1)
            for i, j in PAIRS
        ])

    @property
    def nearest(self) -> np.ndarray:
        """Distance of the two bodies nearest to each other, (T,)."""
        return self.distances.min(0)

    @property
    def energy(self) -> np.ndarray:
        """Kinetic and potential energy, (T,); constant in theory."""
        mass = self.masses
        kinetic = 0.5 * (mass[:, None] * self.velocity**2).sum((1, 2))
        return kinetic - sum(
            mass[i] * mass[j] / distance
            for (i, j), distance in zip(PAIRS, self.distances))

    @property
    def energy_drift(self) -> float:
        """Largest relative change of the energy."""
        return float(np.abs(self.energy / self.energy[0] - 1).max())


def acceleration(position: np.ndarray, masses: np.ndarray) -> np.ndarray:
    """Newton's law for three bodies, (3, 2) and (3,) -> (3, 2)."""
    apart = position - position[:, None]
    cubed = (apart**2).sum(-1)**1.5
    np.fill_diagonal(cubed, np.inf)
    return (masses[:, None] * apart / cubed[..., None]).sum(1)


def motion(state: np.ndarray, masses: np.ndarray) -> np.ndarray:
    """Change of positions and velocities, (12,) and (3,) -> (12,)."""
    position, velocity = state.reshape(2, 3, 2)
    return np.concatenate([velocity, acceleration(position, masses)]).ravel()


def observe(end: float, interval: float, position: np.ndarray = START,
            velocity: np.ndarray = REST, masses: np.ndarray = MASSES
            ) -> Observations:
    """Integrate the motion and look at it every ``interval``.

    Args:
        end (float): Time to stop at.
        interval (float): Time between observations.
        position (ndarray): At time 0, (3, 2). Defaults to Burrau's.
        velocity (ndarray): At time 0, (3, 2). Defaults to rest.
        masses (ndarray): (3,). Defaults to Burrau's.

    Raises:
        RuntimeError: The integrator gave up.
    """
    times = np.arange(0, end + interval / 2, interval)
    start = np.concatenate([position, velocity]).ravel()
    # The bodies of the first close encounter pass at 4e-4: a looser
    # tolerance ends in another motion.
    solution = solve_ivp(
        lambda _, state: motion(state, masses), (0, times[-1]), start,
        'DOP853', times, rtol=1e-13, atol=1e-13)
    if not solution.success:
        raise RuntimeError(f'SciPy stopped: {solution.message}')
    states = solution.y.T.reshape(-1, 2, 3, 2)
    return Observations(times, states[:, 0], states[:, 1], masses)


def draw(seen: Observations, index: np.ndarray, close: float,
         path: Path) -> None:
    """Draw the orbits, the index, and the nearest distance."""
    figure, (orbits, sai, distance) = paper_figure(3, 1, width=4, height=3.4)
    for body, (mass, color) in enumerate(zip(MASSES, COLORS)):
        orbits.plot(
            *seen.position[:, body].T, color=color, linewidth=0.6,
            label=f'mass {mass:g}')
        orbits.plot(*START[body], 'o', color=color, markersize=5)
    orbits.set(
        title='Orbits from rest (dots)', xlabel='x', ylabel='y',
        aspect='equal')
    orbits.legend(loc='lower right')

    time, nearest = seen.time[:-1], seen.nearest[:-1]
    near = nearest < close
    for axes, values in ((sai, index), (distance, nearest)):
        axes.semilogy(time, values, color=COLORS[0], linewidth=0.6)
        axes.semilogy(
            time[near], values[near], '.', color=COLORS[1], markersize=4,
            label=f'two bodies nearer than {close:g}')
        axes.set(xlabel='time')
    sai.set(title='Stiffness-aware index', ylabel='SAI',
            ylim=(None, index.max() * 20))
    sai.legend(loc='upper right')
    distance.axhline(close, color=COLORS[1], linewidth=0.6)
    distance.set(title='Nearest two bodies', ylabel='distance')
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        '--out', type=Path, default=Path('three_body.png'), help='picture')
    parser.add_argument(
        '--end', type=positive_float, default=60.0, help='time to stop at')
    parser.add_argument(
        '--interval', type=positive_float, default=0.01,
        help='time between observations')
    parser.add_argument(
        '--close', type=positive_float, default=0.2,
        help='two bodies nearer than this meet in a close encounter')
    args = parser.parse_args()
    if args.interval > args.end:
        parser.error(f'--interval {args.interval:g} is longer than --end '
                     f'{args.end:g}')
    seen = observe(args.end, args.interval)
    index = stiffness_aware_index(seen.state, seen.time)
    near = seen.nearest[:-1] < args.close
    print(f'{len(seen.time)} observations until time {seen.time[-1]:g}; '
          f'energy kept to {seen.energy_drift:.1e}')
    print(f'close encounters: {near.mean():.1%} of the time')
    if near.any() and not near.all():
        print(f'median SAI {np.median(index[near]):.3g} in them, '
              f'{np.median(index[~near]):.3g} elsewhere')
    stiffest = np.argsort(index)[-max(len(index) // 50, 1):]
    if near.any():
        share = near[stiffest].sum() / near.sum()
        print(f'{share:.0%} of them are among the stiffest 2 % of '
              f'observations')
    correlation = spearmanr(index, seen.nearest[:-1]).statistic
    print(f"Spearman's correlation of SAI and nearest distance: "
          f'{correlation:.2f}')
    draw(seen, index, args.close, args.out)
    print(f'picture: {args.out}')


if __name__ == '__main__':
    main()
