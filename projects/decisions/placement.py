"""Gates in the stiffest blocks of a trained network, or elsewhere.

    python -m projects.decisions.placement --data data

Question 1 of PLAN.md. One row a seed, network and choice of blocks, written as
it comes; a second call goes on where the first ended.
"""

from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from statistics import mean

import mmstepnet
from projects.recipes.pretrained import (
    images,
    interval,
    prepared,
    pretrained,
    train_steps,
)
from projects.recipes.rows import experiment, run_missing

NETWORKS = 'resnet20', 'resnet32', 'resnet44'
CHOICES = 'stiffest', 'least stiff', 'random'
ROWS = Path(__file__).with_name('placement.tsv')


def chosen(network: str, choice: str, seed: int, root: Path) -> list[str]:
    """Names of a third of the recorded blocks."""
    model, _ = pretrained(network, root)
    pixels, _ = images(root, 'train', 10)
    score = 'random' if choice == 'random' else 'adaptive'
    found = mmstepnet.block_scores(
        model.eval(), [prepared(pixels, network)], score, seed=seed)
    order = sorted(found, key=found.get, reverse=choice == 'stiffest')
    return order[:round(len(order) / 3)]


def measure(root: Path, seed: int, network: str, choice: str) -> list:
    """Accuracy (%), cross-entropy, and the blocks."""
    blocks = chosen(network, choice, seed, root)
    accuracy, loss, *_ = train_steps(network, 'gates', seed, root, blocks)
    return [accuracy, loss, ' '.join(blocks)]


def differences(rows: list[list[str]]) -> Iterator[str]:
    """The primary measure and those beside it."""
    found = {(int(seed), network, choice): float(loss)
             for seed, network, choice, _, loss, _ in rows}
    complete = [seed for seed in sorted({key[0] for key in found}) if all(
        (seed, *rest) in found for rest in product(NETWORKS, CHOICES))]
    for networks in (NETWORKS, *((name, ) for name in NETWORKS)):
        for other in ('random', 'least stiff'):
            by_seed = [mean(found[seed, name, 'stiffest']
                            - found[seed, name, other] for name in networks)
                       for seed in complete]
            if by_seed:
                yield (f'| {", ".join(networks)} | stiffest − {other} | '
                       f'{len(by_seed)} | {interval(by_seed, 4)} |')


def means(rows: list[list[str]]) -> Iterator[str]:
    """Accuracy and cross-entropy of each network and choice, over seeds."""
    yield '| network | gates in blocks | seeds | accuracy, % | cross-entropy |'
    yield '|---' * 5 + '|'
    for network, choice in product(NETWORKS, CHOICES):
        found = [(float(accuracy), float(loss)) for _, *name, accuracy, loss,
                 _ in rows if name == [network, choice]]
        if found:
            accuracies, losses = map(list, zip(*found))
            yield (f'| {network} | {choice} | {len(found)} | '
                   f'{interval(accuracies, 2)} | {interval(losses, 4)} |')


def main() -> None:
    """Run what is missing, then print the tables."""
    parser = experiment(__doc__, ROWS)
    parser.add_argument('--seeds', type=int, default=10)
    args = parser.parse_args()
    rows = run_missing(
        args.rows, product(range(args.seeds), NETWORKS, CHOICES),
        partial(measure, args.data))
    print('| networks | cross-entropy | seeds | difference |')
    print('|---' * 4 + '|')
    print('\n'.join((*differences(rows), '', *means(rows))))


if __name__ == '__main__':
    main()
