"""Small trainings on digits: an alarm, and scores of architectures.

    python -m projects.decisions.digits

Questions 2 and 3 of PLAN.md. One row a run in ``alarm.tsv`` and
``architectures.tsv``, written as it comes; a second call goes on where the
first ended. Then the tables.
"""

import argparse
import json
import math
import warnings
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from scipy import stats
from sklearn.datasets import load_digits
from torch import Tensor

import mmstepnet
from mmstepnet.stiffness.trajectories import Trajectories
from projects.recipes.cifar_resnet import CIFARResNet
from projects.recipes.rows import run_missing

FOLDER = Path(__file__).parent
BATCH, HELD_OUT = 64, 64
ITERATIONS, EVERY, FIRST = 150, 5, 5
RATES, SEEDS = (0.1, 0.3, 1.0, 3.0, 10.0), range(10)
EPOCHS, ARCHITECTURE_SEEDS = 10, range(3)
QUANTITIES = 'loss', 'gradient norm', 'TNS', 'largest NSI'
SCORES = ('TNS, untrained', 'TNS, epoch 1', 'mean NSI, untrained',
          'mean NSI, epoch 1', 'parameters', 'gradient norm, untrained',
          'loss, epoch 1')


@cache
def data() -> tuple[Tensor, Tensor]:
    """The digits, (1797, 3, 8, 8), in an order of their own, and labels."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    x = torch.tensor(digits.images[order] / 8 - 1, dtype=torch.float32)
    return x[:, None].expand(-1, 3, -1, -1), torch.tensor(digits.target[order])


def network(depth: int, width: int, attention: str) -> nn.Module:
    """A ResNet for digits, its steps starting at 1."""
    model = CIFARResNet(depth, width)
    if attention != 'plain':
        mmstepnet.insert_steps(model, attention)
    return model


def stiffness(model: nn.Module) -> Trajectories:
    """Of 64 held-out pictures."""
    # One block in all, as of depth 8, is recorded where it is named.
    return mmstepnet.measure_stiffness(
        model, [data()[0][-HELD_OUT:]], blocks='layer[123].*')


def iterations(model: nn.Module, rate: float, count: int,
               cosine: bool = False) -> Iterator[tuple[float, float]]:
    """Train; after each iteration its loss and the norm of its gradient."""
    x, labels = (t[:1437] for t in data())
    optimizer = torch.optim.SGD(model.parameters(), rate, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
        optimizer, count if cosine else 10**9)
    order = torch.cat([torch.randperm(len(x))[:len(x) // BATCH * BATCH]
                       for _ in range(-(-count * BATCH // len(x)) + 1)])
    for chosen in order.split(BATCH)[:count]:
        model.train()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[chosen]), labels[chosen])
        loss.backward()
        norm = gradient_norm(model)
        optimizer.step()
        schedule.step()
        yield loss.item(), norm


def gradient_norm(model: nn.Module) -> float:
    """Of all parameters."""
    return nn.utils.get_total_norm(
        [p.grad for p in model.parameters() if p.grad is not None]).item()


def alarm(attention: str, rate: float, seed: int) -> list[str]:
    """Losses of all iterations; each quantity, every fifth iteration."""
    torch.manual_seed(seed)
    model = network(20, 16, attention)
    losses, seen, last = [], {name: [] for name in QUANTITIES}, []
    for loss, norm in iterations(model, rate, ITERATIONS):
        losses.append(loss)
        last.append((loss, norm))
        if len(last) < EVERY:
            continue
        try:
            found = stiffness(model)
            tns, nsi = found.tns(), found.nsi().mean(0).max()
        except ValueError:  # no sample has a finite NSI
            tns = nsi = math.nan
        for name, value in zip(QUANTITIES, (
                np.mean([a for a, _ in last]), np.max([b for _, b in last]),
                tns, nsi)):
            seen[name].append(float(value))
        last = []
    return [json.dumps(losses), json.dumps(seen)]


def diverges(losses: list[float]) -> bool:
    """As the plan says."""
    if not np.isfinite(losses).all():
        return True
    means = np.convolve(losses, np.ones(20) / 20, 'valid')
    return bool(means[-1] > min(means.min() + 1, 2.2))


def ratios(values: list[float], left_out: bool = False) -> np.ndarray:
    """Of each measurement to the median of those before it.

    Values that are not finite warn, or are left out.
    """
    found = np.array(values)
    if left_out:
        found[~np.isfinite(found)] = np.nan
    median = np.nanmedian if left_out else np.median
    with np.errstate(all='ignore'), warnings.catch_warnings():
        warnings.simplefilter('ignore')  # of a past that is all NaN
        found = [found[k] / median(found[:k])
                 for k in range(FIRST - 1, len(found))]
    return np.nan_to_num(found, nan=0.0 if left_out else np.inf)


def first_warnings(rows: list[list[str]], left_out: bool = False
                   ) -> tuple[dict[str, float],
                              list[tuple[bool, dict[str, float]]]]:
    """What each quantity must exceed to warn, and where it does so first.

    Args:
        rows (list): Of ``alarm.tsv``.
        left_out (bool): Whether undefined values of TNS and NSI neither warn
            nor count, which was not planned. Defaults to False.

    Returns:
        tuple: The largest ratios of healthy runs of seeds 0 to 4. Of each run
        of the other seeds whether it diverges, and the iterations, which are
        infinite where nothing warns.
    """
    runs = [(int(seed), diverges(json.loads(losses)), {
        name: ratios(values, left_out and name in QUANTITIES[2:])
        for name, values in json.loads(seen).items()})
        for _, _, seed, losses, seen in rows]
    highest = {name: max(r[name].max() for seed, bad, r in runs
                         if seed < 5 and not bad) for name in QUANTITIES}
    return highest, [
        (bad, {name: next(((k + FIRST) * EVERY
                           for k, value in enumerate(r[name])
                           if value > highest[name]), math.inf)
               for name in QUANTITIES})
        for seed, bad, r in runs if seed >= 5]


def alarms(rows: list[list[str]], left_out: bool = False) -> str:
    """The table of question 2, of what :func:`first_warnings` finds."""
    highest, held = first_warnings(rows, left_out)
    lines = ['| quantity | c | false alarms | diverging runs that it warns of '
             '| median iteration of the warning |', '|---' * 5 + '|']
    for name in QUANTITIES:
        of = {kind: [first[name] for bad, first in held if bad is kind]
              for kind in (True, False)}
        warned = [k for k in of[True] if k < math.inf]
        lines.append(
            f'| {name} | {highest[name]:.2f} | '
            f'{sum(k < math.inf for k in of[False])} of {len(of[False])} | '
            f'{len(warned)} of {len(of[True])} | '
            f'{np.median(warned) if warned else math.nan:.0f} |')
    bad = [first for diverging, first in held if diverging]
    earlier = sum(min(first['TNS'], first['largest NSI'])
                  < min(first['loss'], first['gradient norm'])
                  for first in bad)
    interval = stats.binomtest(earlier, len(bad)).proportion_ci(
        method='exact')
    return '\n'.join([
        *lines, f'\nStiffness warns first in {earlier} of {len(bad)} '
        f'diverging runs ({interval.low:.2f} to {interval.high:.2f}).'])


def architecture(depth: int, width: int, attention: str,
                 seed: int) -> list[float]:
    """The scores, then test loss and accuracy."""
    torch.manual_seed(seed)
    model = network(depth, width, attention)
    x, labels = data()
    untrained = stiffness(model)
    model.train()
    F.cross_entropy(model(x[:BATCH]), labels[:BATCH]).backward()
    norm, each = gradient_norm(model), 1437 // BATCH
    training = iterations(model, 0.1, EPOCHS * each, cosine=True)
    losses = [next(training)[0] for _ in range(each)]
    early = stiffness(model)
    for _ in training:
        pass
    model.eval()
    with torch.no_grad():
        scores = model(x[1437:])
    return [untrained.tns(mu='all'), early.tns(mu='all'),
            untrained.nsi().mean(), early.nsi().mean(),
            sum(p.numel() for p in model.parameters()), norm,
            np.mean(losses[-5:]),
            F.cross_entropy(scores, labels[1437:]).item(),
            (scores.argmax(1) == labels[1437:]).float().mean().item()]


def over_seeds(rows: list[list[str]]
               ) -> tuple[list[tuple[str, ...]], np.ndarray]:
    """The networks, and the means of their scores, loss and accuracy."""
    names = sorted({tuple(row[:3]) for row in rows})
    return names, np.array([
        np.mean([[float(v) for v in row[4:]] for row in rows
                 if tuple(row[:3]) == name], 0) for name in names])


def ranks(rows: list[list[str]]) -> str:
    """The table of question 3."""
    names, values = over_seeds(rows)
    rng = np.random.default_rng(0)
    draws = np.stack([rng.integers(len(names), size=len(names))
                      for _ in range(2000)])
    (rho, ), drawn = correlations(values[None]), correlations(values[draws])
    lines = ['| score | ρ with the test loss | its size, 95 % interval |',
             '|---' * 3 + '|']
    for k, name in enumerate(SCORES):
        low, high = np.nanpercentile(abs(drawn[:, k]), [2.5, 97.5])
        lines.append(f'| {name} | {rho[k]:.2f} | {low:.2f} to {high:.2f} |')
    tns, parameters = SCORES.index('TNS, epoch 1'), SCORES.index('parameters')
    low, high = np.nanpercentile(
        abs(drawn[:, tns]) - abs(drawn[:, parameters]), [2.5, 97.5])
    return '\n'.join([
        *lines, f'\nTNS after one epoch minus parameters, {len(names)} '
        f'networks: {abs(rho[tns]) - abs(rho[parameters]):.2f} '
        f'({low:.2f} to {high:.2f}).'])


def within_depths(rows: list[list[str]]) -> str:
    """Depth as a score, and TNS among networks of one depth; not planned."""
    names, values = over_seeds(rows)
    depths = np.array([int(depth) for depth, *_ in names])
    rho = stats.spearmanr(depths, values[:, 7]).statistic
    lines = [f'Depth: ρ = {rho:.2f}.\n',
             '| depth | test losses | ρ of TNS, untrained | ρ of TNS, epoch 1 '
             '|', '|---' * 4 + '|']
    for depth in np.unique(depths):
        own = values[depths == depth]
        cells = [f'{r:.2f}' for r in correlations(own[None])[0, :2]]
        lines.append(f'| {depth} | {own[:, 7].min():.3f} to '
                     f'{own[:, 7].max():.3f} | {" | ".join(cells)} |')
    return '\n'.join(lines)


def correlations(values: np.ndarray) -> np.ndarray:
    """Spearman's ρ of each score with the test loss.

    Args:
        values (ndarray): Scores, then loss and accuracy, (draws, networks, 9).

    Returns:
        ndarray: (draws, 7); NaN where a score is the same for all networks.
    """
    ranks = stats.zscore(stats.rankdata(values[..., :8], axis=1), axis=1)
    return (ranks[..., :7] * ranks[..., 7:]).mean(1)


def main() -> None:
    """Run what is missing, then print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--out', type=Path, default=FOLDER,
                        help='folder of the rows')
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = run_missing(
        args.out / 'alarm.tsv', product(('plain', 'StepNet'), RATES, SEEDS),
        alarm)
    print(alarms(rows), alarms(rows, left_out=True), sep='\n\n')
    rows = run_missing(
        args.out / 'architectures.tsv',
        product((8, 14, 20, 32), (8, 16), ('plain', 'SE', 'StepNet'),
                ARCHITECTURE_SEEDS), architecture)
    print('', ranks(rows), within_depths(rows), sep='\n\n')


if __name__ == '__main__':
    main()
