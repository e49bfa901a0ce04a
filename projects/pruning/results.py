"""Tables and figures of what ``curves.py`` has written.

``python -m projects.pruning.results`` prints the tables.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator
from scipy import stats

from projects.drawing import (
    PAPER_STYLE,
    grid_figure,
    legend_below,
    line_style,
)

from .curves import GREEDY, NETWORKS, OUT, SCORES, SEEDS

DRAWS = 2000
TICKS = (0, 0.1, 0.2, 0.5, 1), (0, 0.5, 1, 2, 5, 10)
SHOWN = (*SCORES, 'random', 'ablation')
NAMES = {'adaptive': 'NSI, adaptive', 'returned': 'NSI, returned',
         'share': 'share of stiffness', 'f_norm': '‖f‖',
         'influence': 'block influence', 'last': 'last first',
         'random': 'random', 'ablation': 'ablation (trial)'}


class Network:
    """What was found of one network."""

    def __init__(self, name: str, out: Path):
        self.name = name
        with np.load(out / f'{name}.npz') as file:
            self.found = dict(file)
        about = json.loads((out / f'{name}.json').read_text())
        self.multiplications, self.scores = (
            about['multiplications'], about['scores'])
        self.names = list(self.scores['last 0'])
        self.draws = np.random.default_rng(0).integers(
            len(self.found[''][0]), size=(DRAWS, len(self.found[''][0])))
        self.lost = np.stack([self.of([name]) for name in self.names])

    def of(self, removed: list[str]) -> np.ndarray:
        """Increase of each picture's cross-entropy, (N,)."""
        return self.found[self.key(removed)][0] - self.found[''][0]

    @staticmethod
    def key(removed: list[str]) -> str:
        """As the blocks follow each other in the network."""
        return '+'.join(sorted(removed, key=lambda name: [
            int(part) if part.isdigit() else part
            for part in name.replace('layer', 'layer.').split('.')]))

    def mean_of(self, score: str, count: int) -> np.ndarray:
        """Increase with so many blocks removed; random: mean of orders."""
        return np.mean([self.of(order[:count])
                        for order in self.orders(score)], 0)

    def has(self, count: int) -> bool:
        """Whether all orders were run so far."""
        return all(self.key(order[:count]) in self.found
                   for score in SHOWN for order in self.orders(score))

    def orders(self, score: str) -> Iterator[list[str]]:
        """Blocks in the order of removal."""
        for seed in SEEDS if score == 'random' else (0, ):
            values = self.values(score, seed)
            yield [self.names[k] for k in np.argsort(values, kind='stable')]

    def values(self, score: str, seed: int = 0) -> np.ndarray:
        """Scores in the order of the blocks."""
        if score == 'ablation':
            return self.lost.mean(1)
        found = self.scores[f'{score} {seed}']
        return np.array([found[name] for name in self.names])

    def interval(self, each: np.ndarray) -> tuple[float, float, float]:
        """Mean over pictures with its bootstrap interval."""
        low, high = np.percentile(each[self.draws].mean(1), (2.5, 97.5))
        return float(each.mean()), float(low), float(high)

    def correlation(self, score: str) -> tuple[float, float, float]:
        """Spearman's rho with the ablation, interval over pictures."""
        # Spearman's is Pearson's of ranks; averaged over random orders.
        scored = stats.zscore(stats.rankdata([
            self.values(score, seed)
            for seed in (SEEDS if score == 'random' else (0, ))], axis=1),
            axis=1).mean(0) / len(self.names)
        drawn = np.stack([lost[self.draws].mean(1) for lost in self.lost], 1)
        mean, *found = stats.zscore(stats.rankdata(
            [self.lost.mean(1), *drawn], axis=1), axis=1) @ scored
        return mean, *np.percentile(found, (2.5, 97.5))

    def greedy(self, score: str, count: int) -> list[str]:
        """Blocks removed with scores measured anew each time."""
        gone: list[str] = []
        while len(gone) < count:
            found = self.scores.get(' '.join((score, '0', *gone)))
            if found is None:
                return []
            gone.append(min(found, key=found.get))
        return gone if self.key(gone) in self.found else []


def ranged(found: tuple[float, float, float]) -> str:
    return '{:.2f} ({:.2f}, {:.2f})'.format(*found)


def over_networks(values: list[float]) -> tuple[float, float, float]:
    """Mean and interval of Student's t."""
    mean = float(np.mean(values))
    half = stats.t.ppf(0.975, len(values) - 1) * np.std(
        values, ddof=1) / len(values)**0.5 if len(values) > 1 else np.nan
    return mean, mean - half, mean + half


def table(head: list[str], rows: list[list[str]]) -> str:
    return '\n'.join('| ' + ' | '.join(row) + ' |' for row in (
        head, ['---'] * len(head), *rows))


def correlations(networks: list[Network]) -> str:
    """Question 1."""
    found = {score: [n.correlation(score) for n in networks]
             for score in SHOWN[:-1]}
    rows = [[NAMES[score], *map(ranged, values),
             ranged(over_networks([rho for rho, *_ in values]))]
            for score, values in found.items()]
    differences = [a[0] - b[0] for a, b in zip(
        found['adaptive'], found['influence'])]
    return table(['score', *(n.name for n in networks), 'mean'], rows) + (
        f'\n\nPrimary: ρ(adaptive) − ρ(influence), mean over '
        f'{len(networks)} networks: {ranged(over_networks(differences))}.')


def thirds(networks: list[Network]) -> str:
    """Questions 2 and 3."""
    rows, heads = [], ['score']
    networks = [n for n in networks if n.has(round(len(n.names) / 3))]
    counts = [round(len(n.names) / 3) for n in networks]
    for n, count in zip(networks, counts):
        heads.append(f'{n.name}, {count} of {len(n.names)}')
    for score in SHOWN:
        rows.append([NAMES[score], *(
            f'{n.mean_of(score, k).mean():.2f}, {top_1(n, score, k):.1f} %'
            for n, k in zip(networks, counts))])
    lines = [table(heads, rows), '']
    compared = [['adaptive − influence', *(
        ranged(n.interval(n.mean_of('adaptive', k)
                          - n.mean_of('influence', k)))
        for n, k in zip(networks, counts))]]
    compared += [[f'{score} − random', *(
        ranged(n.interval(n.mean_of(score, k) - n.mean_of('random', k)))
        for n, k in zip(networks, counts))]
        for score in ('adaptive', 'returned', 'influence', 'last')]
    compared += [[f'{score}, greedy − at once', *(
        ranged(n.interval(n.of(gone) - n.mean_of(score, k)))
        if (gone := n.greedy(score, k)) else 'not run'
        for n, k in zip(networks, counts))] for score in GREEDY]
    return '\n'.join([*lines, table(['difference', *heads[1:]], compared)])


def top_1(network: Network, score: str, count: int) -> float:
    return 100 * float(np.mean([
        network.found[network.key(order[:count])][1].mean()
        for order in network.orders(score)]))


def singles(networks: list[Network]) -> str:
    """Each block by itself."""
    rows = []
    for n in networks:
        right = n.found['']
        for k, name in enumerate(n.names):
            share = 1 - n.multiplications[name] / n.multiplications['']
            rows.append([n.name, name, f"{n.values('adaptive')[k]:.3f}",
                         f"{n.values('influence')[k]:.4f}",
                         ranged(n.interval(n.lost[k])),
                         f'{100 * (right[1] - n.found[name][1]).mean():.1f}',
                         f'{100 * share:.1f}'])
    return table(['network', 'block', 'NSI', 'influence',
                  'increase of cross-entropy', 'top-1 lost, points',
                  'multiplications saved, %'], rows)


def draw_curves(networks: list[Network]) -> Figure:
    """Increase of cross-entropy against blocks removed."""
    networks = [n for n in networks if n.has(round(len(n.names) / 3))]
    figure, axes = grid_figure(len(networks), 2, 2.9, 2.3)
    for ax, n in zip(axes, networks):
        at = [k for k in range(1, len(n.names) // 2 + 1) if n.has(k)]
        highest = 0.0
        for i, score in reversed(list(enumerate(SHOWN))):
            found = [n.interval(n.mean_of(score, k)) for k in at]
            mean, low, high = zip(*found)
            highest = max(highest, *mean)
            color, _ = line_style(i)
            ax.plot(at, mean, color='black' if score == 'ablation' else color,
                    ls=':' if score in ('random', 'last') else '-',
                    lw=1 + (score == 'adaptive'),
                    marker='.', ms=4, label=NAMES[score])
            if score in ('adaptive', 'influence'):
                ax.fill_between(at, low, high, color=color, alpha=0.15, lw=0)
        ax.set_title(f'{n.name}\n{len(n.names)} blocks, '
                     f'top-1 {100 * n.found[""][1].mean():.1f} %')
        ax.set(xlabel='blocks removed', ylabel='increase of cross-entropy')
        ax.set_xticks(at)
        ax.set_yscale('symlog', linthresh=0.5)
        ax.set_ylim(-0.1, highest * 1.1)
        ax.set_yticks([y for y in TICKS[highest > 2] if y < highest])
        ax.yaxis.set_major_formatter('{x:g}')
    handles, labels = axes[0].get_legend_handles_labels()
    legend_below(figure, handles[::-1], labels[::-1])
    return figure


def draw_singles(networks: list[Network]) -> Figure:
    """NSI against what the network loses, a point a block."""
    figure, axes = grid_figure(len(networks), 2, 2.9, 2.2)
    for ax, n in zip(axes, networks):
        found = np.array([n.interval(lost) for lost in n.lost])
        for i, score in enumerate(('adaptive', 'influence')):
            ax.errorbar(n.values(score), found[:, 0],
                        np.abs(found[:, 1:] - found[:, :1]).T, fmt='.',
                        color=line_style(i)[0], lw=0.8, ms=6,
                        label=NAMES[score])
        ax.set_title(f'{n.name}\nρ = {n.correlation("adaptive")[0]:.2f} and '
                     f'{n.correlation("influence")[0]:.2f}')
        ax.set_xlabel('score of the block')
        ax.set_xscale('log')
        ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.xaxis.set_major_formatter('{x:g}')
        ax.xaxis.set_minor_formatter('')
        ax.set_ylabel('increase of cross-entropy')
    legend_below(figure, *axes[0].get_legend_handles_labels())
    return figure


def main() -> None:
    """Print tables and write figures."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--out', type=Path, default=OUT)
    parser.add_argument('--networks', nargs='+', choices=NETWORKS)
    args = parser.parse_args()
    networks = [Network(name, args.out) for name in args.networks or NETWORKS
                if (args.out / f'{name}.npz').exists()]
    for part in (correlations, thirds, singles):
        print(part(networks), end='\n\n')
    folder = Path(__file__).parent
    with rc_context(PAPER_STYLE):
        draw_curves(networks).savefig(folder / 'curves.png')
        draw_singles(networks).savefig(folder / 'blocks.png')


if __name__ == '__main__':
    main()
