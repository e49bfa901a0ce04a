"""How many three-body motions have a close encounter, and for how long.

Section 3.1 of https://arxiv.org/abs/2308.09939 tells of 1,000 simulations of
three bodies "following" Symplectic recurrent neural networks
(https://arxiv.org/abs/1909.13334), that 91.4 % of them contain a close
encounter and that 4.2 % of the time intervals do. Neither what a close
encounter is nor how long the motions are is printed there.

What follows was fixed before the first motion of this table was looked at.

Motions: as that paper's public code draws them (which takes it from
Hamiltonian neural networks, https://arxiv.org/abs/1906.01563): three bodies
of mass 1, with G = 1, on an equilateral triangle around the origin, whose
corners are 0.9 to 1.2 from it; each with the velocity of the circular motion,
whose two components are multiplied by numbers between 0.8 and 1.2. Each
motion draws numbers of its own. That code's script trains on 10 time units,
and so 10 is the length that we compare with the paper; 5 (the length in
Hamiltonian neural networks' code) and 20 stand beside it, because the shares
depend on it. A motion is observed 100 times a unit, as that code's data.

Definitions of a close encounter at an observation:

- distance: two bodies are nearer to each other than a tenth of the side of
  the triangle that they started on. The word's plain meaning, in the
  motion's own unit; they attract each other at least 100 times as much as
  at the start.
- two-body: the third body disturbs the relative motion of the nearest two by
  less than 1 %, 2 m_3 / (m_1 + m_2) (d / R)^3 < 0.01, with d their distance
  and R that of the third from their centre of mass. The criterion of N-body
  codes for treating two bodies by themselves (Aarseth, 2003, Gravitational
  N-body simulations), at a threshold of ours. It includes binaries that last.
- stiffness: the stiffness-aware index of the interval that the observation
  begins is above 10 times the motion's median. Encounters matter to the
  paper because they make motions stiff, and the index is what its source
  (Stiffness-aware neural network for learning Hamiltonian systems, ICLR 2022)
  tells stiff intervals by; an order of magnitude is a threshold of ours.

Observations, but the last one, stand for the intervals that they begin. The
table says how many motions keep their energy to less than 1e-6; none is
dropped, for these would be the ones of the closest encounters.
"""

import argparse
import json
import os
import platform
import time
from pathlib import Path

import numpy as np
import scipy

from mmstepnet.checks import positive_int
from mmstepnet.stiffness import stiffness_aware_index

from .three_body import PAIRS, Observations, observe

MASSES = np.ones(3)
INTERVAL = 0.01
LENGTHS = (5.0, 10.0, 20.0)
COMPARED = 10.0
"""Length whose shares stand beside the paper's."""

PAPER = {'simulations': 0.914, 'time': 0.042}
NEAR, DISTURBED, STIFF, DRIFT = 0.1, 0.01, 10.0, 1e-6


def draw_motion(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw positions and velocities at time 0, (3, 2) both."""
    direction = rng.uniform(-1, 1, 2)
    radius = rng.uniform(0.9, 1.2)
    angle = np.arctan2(direction[1], direction[0]) + np.arange(
        3) * 2 * np.pi / 3
    outward = np.stack([np.cos(angle), np.sin(angle)], 1)
    forward = np.stack([-outward[:, 1], outward[:, 0]], 1)
    # Two attractions of 1 / side^2, 30 degrees off the centre: the sum is
    # v^2 / radius.
    speed = (3**-0.5 / radius)**0.5
    return radius * outward, speed * forward * rng.uniform(0.8, 1.2, (3, 2))


def close(seen: Observations) -> dict[str, np.ndarray]:
    """Tell where a motion is a close encounter, by each definition.

    Returns:
        dict: Bool of each observation but the last, (T - 1,).
    """
    distances = seen.distances
    side = distances[:, 0].min()
    pair = distances.argmin(0)
    disturbance = np.empty(len(pair))
    for p, (i, j) in enumerate(PAIRS):
        k = 3 - i - j
        mass = seen.masses
        centre = (mass[i] * seen.position[:, i] + mass[j] * seen.position[:, j]
                  ) / (mass[i] + mass[j])
        apart = np.linalg.norm(seen.position[:, k] - centre, axis=1)
        here = pair == p
        disturbance[here] = (2 * mass[k] / (mass[i] + mass[j]) *
                             (distances[p] / apart)**3)[here]
    index = stiffness_aware_index(seen.state, seen.time)
    return {
        'distance': seen.nearest[:-1] < NEAR * side,
        'two-body': disturbance[:-1] < DISTURBED,
        'stiffness': index > STIFF * np.median(index),
    }


def first(seen: Observations, length: float) -> Observations:
    """The motion until that time."""
    kept = round(length / INTERVAL) + 1
    return Observations(seen.time[:kept], seen.position[:kept],
                        seen.velocity[:kept], seen.masses)


def simulate(count: int, seed: int) -> dict:
    """Draw motions, and measure both shares by each definition.

    Args:
        count (int): Number of motions.
        seed (int): Of the k-th motion, beside k.

    Returns:
        dict: ``shares`` by length and definition: of ``simulations`` that
        contain an encounter, and of their ``time``, on average;
        ``energy_drift``, the largest relative change, and ``drifting``, the
        number of motions in which it exceeds ``DRIFT``.
    """
    time_share = np.empty((count, len(LENGTHS), 3))
    drift = np.empty(count)
    for k in range(count):
        motion = draw_motion(np.random.default_rng([seed, k]))
        seen = observe(max(LENGTHS), INTERVAL, *motion, MASSES)
        drift[k] = seen.energy_drift
        for at, length in enumerate(LENGTHS):
            found = close(first(seen, length))
            time_share[k, at] = [where.mean() for where in found.values()]
        if (k + 1) % 100 == 0:
            print(f'{k + 1} of {count} motions', flush=True)
    return dict(
        shares={
            f'{length:g}': {
                name: dict(
                    simulations=float((time_share[:, at, d] > 0).mean()),
                    time=float(time_share[:, at, d].mean()))
                for d, name in enumerate(found)
            }
            for at, length in enumerate(LENGTHS)
        },
        energy_drift=float(drift.max()),
        drifting=int((drift > DRIFT).sum()))


def to_markdown(result: dict) -> str:
    """Write the table beside the paper's two numbers."""
    lines = [
        '| length | close encounter | simulations with one | of the time |',
        '|---:|---|---:|---:|',
        f'| not printed | not printed (the paper) | '
        f"{PAPER['simulations']:.1%} | {PAPER['time']:.1%} |"
    ]
    for length, definitions in result['shares'].items():
        compared = ' (compared)' * (float(length) == COMPARED)
        lines += [
            f'| {length}{compared} | {name} | {share["simulations"]:.1%} | '
            f'{share["time"]:.2%} |' for name, share in definitions.items()
        ]
    return '\n'.join([
        '# Close encounters of three bodies', '',
        f'{result["count"]} motions, seed {result["seed"]}; definitions and '
        'motions as `close_encounters.py` fixes them.', '', *lines, '',
        f'Energy kept to {result["energy_drift"]:.1e} in all motions; '
        f'{result["drifting"]} exceed {DRIFT:g}. '
        f'`{result["command"]}`, {result["minutes"]:.1f} minutes on '
        f'{result["machine"]}.', ''])


def machine() -> str:
    """What the numbers were computed with."""
    return (f'{os.cpu_count()} CPU cores ({platform.machine()}), Python '
            f'{platform.python_version()}, NumPy {np.__version__}, SciPy '
            f'{scipy.__version__}')


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--count', type=positive_int, default=1000,
                        help='number of motions. Default: 1000')
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument(
        '--out', type=Path, default=Path('close_encounters.json'),
        help='results; a Markdown table is written beside them')
    args = parser.parse_args()
    start = time.perf_counter()
    result = simulate(args.count, args.seed)
    result |= dict(
        count=args.count, seed=args.seed, machine=machine(),
        minutes=round((time.perf_counter() - start) / 60, 1),
        command='python -m projects.reproduction.close_encounters '
        f'--count {args.count} --seed {args.seed}')
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=2) + '\n')
    table = to_markdown(result)
    args.out.with_suffix('.md').write_text(table)
    print(table)


if __name__ == '__main__':
    main()
