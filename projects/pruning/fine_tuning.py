"""Networks without some of their blocks, before and after fine-tuning.

    python -m projects.pruning.fine_tuning --data data

Questions 4 and 5 of PLAN_FINE_TUNING.md. One row a seed, network, score and
number of removed blocks, written as it comes; a second call goes on where the
first ended. Then the tables.
"""

import copy
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import product
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from mmstepnet import ablate_blocks, block_scores, remove_blocks
from projects.decisions import digits
from projects.recipes.pretrained import (
    augmented,
    images,
    interval,
    prepared,
    pretrained,
    train,
)
from projects.recipes.rows import experiment, run_missing

RESNETS = 'resnet20', 'resnet32', 'resnet44'
DIGITS = 'digits'
ORDERS = 'adaptive', 'influence', 'last', 'random', 'ablation'
WHOLE = 'whole'
RATE = 1e-4
ROWS = Path(__file__).with_name('fine_tuning.tsv')


class Task(NamedTuple):
    """A trained network and its pictures; all but ``train`` are prepared."""

    model: nn.Module
    scored: Tensor
    ablated: tuple[Tensor, Tensor]
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    prepare: Callable[[Tensor], Tensor]


@cache
def cifar(network: str, root: Path) -> Task:
    """CIFAR-10; the second hundred of each class tests."""
    model, _ = pretrained(network, root)
    pixels, labels = images(root, 'test', 200)
    second = torch.arange(len(labels)) % 200 >= 100
    x = prepared(pixels, network)
    return Task(model.eval(), prepared(images(root, 'train', 10)[0], network),
                (x[~second], labels[~second]), images(root, 'train', 500),
                (x[second], labels[second]),
                lambda pixels: prepared(augmented(pixels), network))


@cache
def trained_digits(seed: int) -> Task:
    """A plain ResNet-20, trained on scikit-learn's digits."""
    torch.manual_seed(seed)
    model = digits.network(20, 16, 'plain')
    x, labels = digits.data()
    steps = digits.EPOCHS * (1437 // digits.BATCH)
    for _ in digits.iterations(model, 0.1, steps, cosine=True):
        pass
    return Task(model.eval(), x[:100], (x[100:1437], labels[100:1437]),
                (x[:1437], labels[:1437]), (x[1437:], labels[1437:]),
                lambda x: x)


@torch.inference_mode()
def tested(model: nn.Module, x: Tensor, labels: Tensor) -> tuple[float, float]:
    """Cross-entropy and accuracy (%)."""
    model.eval()
    scores = torch.cat([model(part) for part in x.split(250)])
    right = (scores.argmax(1) == labels).float().mean()
    return F.cross_entropy(scores, labels).item(), 100 * right.item()


@cache
def losses_without(network: str, seed: int, root: Path) -> dict[str, float]:
    """Increase of the cross-entropy without each recorded block."""
    model, scored, ablated, *_ = task(network, seed, root)
    recorded = list(block_scores(model, [scored], 'last'))
    return ablate_blocks(model, lambda model: -tested(model, *ablated)[0],
                         recorded, example=scored[:1])


def task(network: str, seed: int, root: Path) -> Task:
    return (trained_digits(seed) if network == DIGITS else
            cifar(network, root))


def measure(root: Path, seed: int, network: str, order: str,
            count: int) -> list:
    """Cross-entropy and accuracy before and after; the removed blocks."""
    model, scored, _, (x, labels), test, prepare = task(
        network, seed, root)
    removed = []
    if order != WHOLE:
        found = (losses_without(network, seed if network == DIGITS else 0,
                                root) if order == 'ablation' else
                 block_scores(model, [scored], order, seed=seed))
        removed = sorted(found, key=found.get)[:count]
    model = copy.deepcopy(model)
    if removed:
        remove_blocks(model, removed, scored[:1])
    before = tested(model, *test)
    torch.manual_seed(seed)
    train(model.train(), [dict(params=list(model.parameters()), lr=RATE)],
          x, labels, prepare, epochs=1)
    return [f'{value:.4f}' for value in (*before, *tested(model, *test))] + [
        ' '.join(removed)]


def cases(seeds: int, digits_seeds: int
          ) -> Iterator[tuple[int, str, str, int]]:
    """Digits first, which take a minute."""
    thirds = dict(zip(RESNETS, (2, 4, 6)))
    for seed in range(digits_seeds):
        yield seed, DIGITS, WHOLE, 0
        yield from ((seed, DIGITS, order, count)
                    for order, count in product(ORDERS, (1, 2, 3)))
    for seed, (network, count) in product(range(seeds), thirds.items()):
        yield seed, network, WHOLE, 0
        yield from ((seed, network, order, count) for order in ORDERS)


def table(rows: list[list[str]]) -> Iterator[str]:
    """Means over seeds with intervals of Student's t."""
    yield ('| network | removed | by | seeds | cross-entropy | top-1, % | '
           'cross-entropy, tuned | top-1, tuned, % |')
    yield '|---' * 8 + '|'
    groups: dict[tuple[str, ...], list[list[float]]] = {}
    for _, network, order, count, *values in rows:
        groups.setdefault((network, count, order), []).append(
            [float(value) for value in values[:4]])
    for name, found in groups.items():
        cells = [interval(list(column), digits)
                 for column, digits in zip(zip(*found), (3, 1, 3, 1))]
        yield f'| {" | ".join((*name, str(len(found)), *cells))} |'


def differences(rows: list[list[str]]) -> Iterator[str]:
    """NSI minus each other score, before and after: questions 4 and 5."""
    found = {(int(seed), network, order, count): (float(a), float(b))
             for seed, network, order, count, a, _, b, *_ in rows}
    yield '| networks | NSI minus | seeds | cross-entropy | tuned |'
    yield '|---' * 5 + '|'
    for networks in ({name: str(count) for name, count in zip(
            RESNETS, (2, 4, 6))}, {DIGITS: '1'}, {DIGITS: '2'},
            {DIGITS: '3'}):
        for other in ORDERS[1:]:
            seeds = [seed for seed in sorted({key[0] for key in found})
                     if all((seed, name, order, count) in found
                            for name, count in networks.items()
                            for order in ('adaptive', other))]
            cells = [interval([mean(
                found[seed, name, 'adaptive', count][k]
                - found[seed, name, other, count][k]
                for name, count in networks.items()) for seed in seeds], 3)
                for k in (0, 1)] if seeds else []
            if cells:
                names = ', '.join(f'{name} without {count}'
                                  for name, count in networks.items())
                yield (f'| {names} | {other} | {len(seeds)} | '
                       f'{" | ".join(cells)} |')


def main() -> None:
    """Run what is missing, then print the tables."""
    parser = experiment(__doc__, ROWS)
    parser.add_argument('--seeds', type=int, default=3,
                        help='of the ResNets for CIFAR-10')
    parser.add_argument('--digits-seeds', type=int, default=10)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = run_missing(args.rows, cases(args.seeds, args.digits_seeds),
                       partial(measure, args.data))
    print('\n'.join((*differences(rows), '', *table(rows))))


if __name__ == '__main__':
    main()
