"""The ladder from scratch: ResNet-20, five epochs, body and all.

    python -m projects.ladder.scratch run --data data
    python -m projects.ladder.scratch replace --data data
    python -m projects.ladder.scratch table

A run that was stopped goes on where it was, to the bit. PLAN.md has the
questions, the rungs and the rules. ``replace`` tests the trained StepNets
with constants in place of their gates.
"""

import argparse
import hashlib
import io
import math
import time
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Generator, Tensor

import mmstepnet
from mmstepnet.attentions import Attention
from mmstepnet.files import write_whole

from .means import replace_gates
from .networks import draw_body, untrained
from .pictures import draw_crops, normalise, read_pictures
from .rows import ROOT, append_row, describe_program, markdown, read_rows
from .rungs import FROM_SCRATCH, put_start
from .statistics import (
    LEVEL,
    Difference,
    compare_over_seeds,
    give_verdict,
    holm,
)

ROWS = Path(__file__).parent / 'results' / 'scratch'
WORK_DIR = ROOT / 'work_dirs' / 'ladder'
MAIN = 'stepnet', 'sigmoid-bias', 'norms-start'
QUESTIONS = ('stepnet', 'sigmoid-bias'), ('stepnet', 'norms-start')
EXPLORED = (
    ('norms-start', 'plain'),
    ('stepnet', 'plain'),
    ('norms-half', 'plain'),
    ('layer-scale-half', 'norms-half'),
    ('se-half', 'norms-half'),
    ('se-half', 'layer-scale-half'),
)
SEEDS = range(12)
MARGIN = 0.5
"""Points of accuracy that are worth something."""

NETWORK = 'resnet20'
EPOCHS, BATCH = 5, 128
RATE, FIRST_RATE = 0.1, 0.01
"""The rate, and the share of it at which the warm-up begins."""
MOMENTUM, DECAY = 0.9, 1e-4
KEPT_EVERY = 100
"""Steps after which a run is kept, so that it can go on."""
ESTIMATED = 100
"""Batches of the first epoch on which BNs are estimated again."""

Pictures = tuple[Tensor, Tensor]
"""Pixels, (N, 3, 32, 32) in uint8, and classes, (N,)."""


class Seed:
    """What all rungs of a seed share: body, order and crops.

    None of it is drawn from PyTorch's own generator, which the gates use.

    Args:
        number (int): Decides all of it, and the gates' first weights.
        pictures (int): How many there are to train with.
        network (str): See :func:`untrained`. Defaults to 'resnet20'.
    """

    def __init__(self, number: int, pictures: int, network: str = NETWORK):
        self.number, self.network = number, network
        generator = Generator().manual_seed(number)
        self.body = draw_body(network, generator)
        self.batches = [
            chosen
            for _ in range(EPOCHS)
            for chosen in torch.randperm(pictures, generator=generator).split(
                BATCH
            )
        ]
        self.crops = generator.get_state()


def digest(body: dict[str, Tensor]) -> str:
    """Sixteen digits that tell one body from another."""
    values = b''.join(v.numpy().tobytes() for v in body.values())
    return hashlib.sha256(values).hexdigest()[:16]


EXAMPLE = torch.zeros(1, 3, 32, 32)


@cache
def blocks_of(network: str) -> list[str]:
    """The blocks in which rungs stand: those in which StepNet's gates do."""
    return mmstepnet.insert_steps(untrained(network), example=EXAMPLE)


def build_rung(
    network: str, body: dict[str, Tensor], seed: int, name: str
) -> tuple[nn.Module, list[nn.Parameter]]:
    """The network of a rung at its start, and what is trained of it."""
    model = untrained(network)
    model.load_state_dict(body)
    blocks = blocks_of(network)
    torch.manual_seed(seed)  # of the gates alone
    parameters = put_start(model, FROM_SCRATCH[name], blocks, EXAMPLE)
    return model.to(memory_format=torch.channels_last), parameters


def prepare(pixels: Tensor) -> Tensor:
    """What the network is given."""
    return normalise(pixels).contiguous(memory_format=torch.channels_last)


def rate_at(step: int, epoch: int, steps: int) -> float:
    """The rate of a step: an epoch of warm-up, then half a cosine.

    Args:
        step (int): From 0.
        epoch (int): Steps of an epoch.
        steps (int): All of them.
    """
    if step < epoch:
        share = step / max(epoch - 1, 1)
        return RATE * (FIRST_RATE + (1 - FIRST_RATE) * share)
    turn = math.pi * (step - epoch) / (steps - epoch)
    return RATE * (1 + math.cos(turn)) / 2


def train(
    model: nn.Module,
    parameters: list[nn.Parameter],
    seed: Seed,
    pictures: Pictures,
    kept: Path,
    program: dict,
) -> float:
    """Train a network, or go on with it where it was kept.

    Args:
        model (nn.Module): At its start, changed in place.
        parameters (list): What is trained.
        seed (Seed): Gives order and crops.
        pictures (tuple): To train with.
        kept (Path): The file that holds the run as far as it came.
        program (dict): What trains. A run that another one began is begun
            anew.

    Returns:
        float: Seconds of the CPU, those before a stop included.
    """
    pixels, labels = pictures
    optimizer = torch.optim.SGD(
        parameters, lr=RATE, momentum=MOMENTUM, weight_decay=DECAY
    )
    crops = Generator()
    crops.set_state(seed.crops)
    done, seconds = 0, 0.0
    state = torch.load(kept) if kept.is_file() else None
    if state is not None and state['program'] == program:
        model.load_state_dict(state['model'])
        optimizer.load_state_dict(state['optimizer'])
        crops.set_state(state['crops'])
        done, seconds = state['steps'], state['seconds']
    start = time.process_time() - seconds
    steps = len(seed.batches)
    model.train()
    for step in range(done, steps):
        chosen = seed.batches[step]
        x = prepare(draw_crops(pixels[chosen], crops))
        for group in optimizer.param_groups:
            group['lr'] = rate_at(step, steps // EPOCHS, steps)
        optimizer.zero_grad()
        with torch.autocast('cpu', torch.bfloat16):
            scores = model(x)
        F.cross_entropy(scores.float(), labels[chosen]).backward()
        optimizer.step()
        if (step + 1) % KEPT_EVERY == 0 or step + 1 == steps:
            buffer = io.BytesIO()
            torch.save(
                dict(
                    model=model.state_dict(),
                    optimizer=optimizer.state_dict(),
                    crops=crops.get_state(),
                    steps=step + 1,
                    program=program,
                    seconds=time.process_time() - start,
                ),
                buffer,
            )
            write_whole(kept, buffer.getvalue())
    return time.process_time() - start


@torch.inference_mode()
def test(model: nn.Module, pictures: Pictures) -> dict:
    """Accuracy, loss and answers, and how the gates vary.

    Returns:
        dict: Columns of a row. ``gates`` holds the mean of Δt over pictures,
        channels and blocks, and its deviation over pictures, the mean over
        channels and blocks.
    """
    model.eval()
    pixels, labels = pictures
    gates: dict[nn.Module, list[Tensor]] = {
        m: [] for m in model.modules() if isinstance(m, Attention)
    }
    handles = [
        gate.register_forward_hook(
            lambda gate, _, step: gates[gate].append(step)
        )
        for gate in gates
    ]
    scores = torch.cat([model(prepare(part)) for part in pixels.split(250)])
    for handle in handles:
        handle.remove()
    answers = scores.argmax(1)
    found = dict(
        accuracy=100 * int((answers == labels).sum()) / len(labels),
        loss=float(F.cross_entropy(scores, labels)),
        answers=''.join(map(str, answers.tolist())),
    )
    if gates:
        steps = [torch.cat(parts).double() for parts in gates.values()]
        found['gates'] = dict(
            mean=float(np.mean([float(step.mean()) for step in steps])),
            over_images=float(
                np.mean(
                    [float(step.std(0, correction=0).mean()) for step in steps]
                )
            ),
        )
    return found


def file_of(work_dir: Path, name: str, seed: int) -> Path:
    """Where the trained weights of a rung are kept."""
    return work_dir / f'{name}_{seed:02}.pt'


def run(
    seed: Seed,
    name: str,
    trained: Pictures,
    tested: Pictures,
    work_dir: Path,
    program: dict,
) -> dict:
    """Train a rung and test it.

    Returns:
        dict: The row.
    """
    model, parameters = build_rung(seed.network, seed.body, seed.number, name)
    kept = file_of(work_dir, name, seed.number)
    seconds = train(model, parameters, seed, trained, kept, program)
    return dict(
        network=seed.network,
        rung=name,
        seed=seed.number,
        rate=RATE,
        **test(model, tested),
        numbers=sum(p.numel() for p in parameters),
        seconds=round(seconds),
        dtype='bfloat16',
        body=digest(seed.body),
        **program,
    )


def run_missing(
    names: list[str],
    seeds: list[int],
    trained: Pictures,
    tested: Pictures,
    folder: Path,
    work_dir: Path,
) -> None:
    """Train what has no row yet, seed by seed.

    Raises:
        ValueError: A seed has rows of another CPU, PyTorch or commit.
    """
    program = describe_program()
    for number in seeds:
        there = [row for row in read_rows(folder) if row['seed'] == number]
        wanted = [
            name
            for name in names
            if name not in [row['rung'] for row in there]
        ]
        if not wanted:
            continue
        for row in there:
            made_by = {key: row[key] for key in program}
            if made_by != program:
                raise ValueError(
                    f'the rows of seed {number} were made by {made_by}, and '
                    f'this is {program}; all rows of a seed need one program: '
                    'run other seeds, or move its rows away'
                )
        seed = Seed(number, len(trained[1]))
        for name in wanted:
            row = run(seed, name, trained, tested, work_dir, program)
            append_row(folder / f'seed_{number:02}.jsonl', row)
            print(
                f'{name} seed {number}: {row["accuracy"]:.2f} %, '
                f'loss {row["loss"]:.4f}, {row["seconds"]} s',
                flush=True,
            )


def run_replaced(
    seeds: list[int],
    trained: Pictures,
    tested: Pictures,
    folder: Path,
    work_dir: Path,
    network: str = NETWORK,
) -> None:
    """Replace the gates of the StepNets whose weights are kept."""
    replaced = folder / 'replaced'
    done = [row['seed'] for row in read_rows(replaced)]
    for number in accuracies(list(read_rows(folder)), 'stepnet'):
        if number in done or number not in seeds:
            continue
        seed = Seed(number, len(trained[1]), network)
        model, _ = build_rung(network, seed.body, number, 'stepnet')
        state = torch.load(file_of(work_dir, 'stepnet', number))
        model.load_state_dict(state['model'])
        crops = Generator()
        crops.set_state(seed.crops)
        batches = [
            prepare(draw_crops(trained[0][chosen], crops))
            for chosen in seed.batches[:ESTIMATED]
        ]
        row = dict(
            network=network,
            rung='stepnet',
            seed=number,
            **replace_gates(
                model.eval(), prepare(tested[0]).split(250), tested[1], batches
            ),
            **describe_program(),
        )
        append_row(replaced / f'{network}.jsonl', row)
        print(row, flush=True)


def accuracies(rows: list[dict], name: str) -> dict[int, float]:
    """Accuracies of a rung, by seed."""
    return {
        row['seed']: row['accuracy'] for row in rows if row['rung'] == name
    }


def compare(
    rows: list[dict], first: str, second: str, seeds: list[int]
) -> Difference:
    """First rung minus second, seed by seed."""
    ours, others = accuracies(rows, first), accuracies(rows, second)
    return compare_over_seeds([ours[s] - others[s] for s in seeds])


def verdicts(rows: list[dict], is_ended: bool) -> Iterator[list[str]]:
    """Both questions: numbers and the plan's word.

    There is one look: when all seeds of the main rungs are there, or no more
    will come.
    """
    seeds = sorted(
        set.intersection(*(set(accuracies(rows, name)) for name in MAIN))
        & {*SEEDS}
    )
    is_whole = len(seeds) == len(SEEDS)
    if len(seeds) < 2 or not (is_whole or is_ended):
        for first, second in QUESTIONS:
            yield [
                f'{first} − {second}',
                str(len(seeds)),
                '',
                '',
                '',
                '',
                'not yet',
            ]
        return
    found = [compare(rows, *names, seeds) for names in QUESTIONS]
    answered = holm([d.p_value() for d in found])
    for (first, second), d, is_answered in zip(QUESTIONS, found, answered):
        yield [
            f'{first} − {second}',
            str(len(seeds)),
            f'{d.mean:+.2f}',
            interval(d, LEVEL / len(QUESTIONS)),
            interval(d, 2 * LEVEL),
            f'{d.p_value():.3g}',
            give_verdict(d, is_answered, MARGIN),
        ]


def interval(difference: Difference, level: float = LEVEL) -> str:
    """Both ends, for a table."""
    low, high = difference.interval(level)
    return f'{low:+.2f} to {high:+.2f}'


def explore(
    rows: list[dict], pairs: Sequence[tuple[str, str]] = EXPLORED
) -> Iterator[tuple[tuple[str, str], int, Difference]]:
    """Of each exploratory difference the rungs, the seeds and itself."""
    for first, second in pairs:
        seeds = sorted(
            accuracies(rows, first).keys() & accuracies(rows, second).keys()
        )
        if len(seeds) > 1:
            difference = compare(rows, first, second, seeds)
            yield (first, second), len(seeds), difference


def cells(pair: tuple[str, str], seeds: int, d: Difference) -> list[str]:
    """A line of the table of exploratory differences."""
    return [' − '.join(pair), str(seeds), f'{d.mean:+.2f}', interval(d)]


MEANS = (
    'rung',
    'numbers',
    'seeds',
    'accuracy, %',
    'cross-entropy',
    'mean Δt',
    'its deviation over pictures',
    'minutes',
)


def mean_rows(rows: list[dict]) -> Iterator[list[str]]:
    """Mean and deviation over seeds of each rung, by ``MEANS``."""
    for name in FROM_SCRATCH:
        own = [row for row in rows if row['rung'] == name]
        if not own:
            continue
        deviation = (
            np.std([row['accuracy'] for row in own], ddof=1)
            if len(own) > 1
            else np.nan
        )
        gates = [row['gates'] for row in own if 'gates' in row]
        yield [
            name,
            f'{own[0]["numbers"]:,}',
            str(len(own)),
            f'{np.mean([row["accuracy"] for row in own]):.2f} '
            f'± {deviation:.2f}',
            f'{np.mean([row["loss"] for row in own], dtype=float):.4f}',
            *(
                f'{np.mean([g[key] for g in gates]):.4f}' if gates else ''
                for key in ('mean', 'over_images')
            ),
            f'{np.mean([row["seconds"] for row in own]) / 60:.1f}',
        ]


def table(folder: Path = ROWS, is_ended: bool = False) -> str:
    """What the page shows."""
    rows = list(read_rows(folder))
    return '\n'.join(
        [
            markdown(
                [
                    'difference',
                    'seeds',
                    'points',
                    '97.5 % interval',
                    '90 % interval',
                    'p',
                    'verdict',
                ],
                list(verdicts(rows, is_ended)),
            ),
            markdown([*MEANS], list(mean_rows(rows))),
            markdown(
                ['exploratory difference', 'seeds', 'points', '95 % interval'],
                [cells(*found) for found in explore(rows)],
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
        '--work-dir',
        type=Path,
        default=WORK_DIR,
        help='folder of what a stopped run goes on from. Default: '
        'work_dirs/ladder',
    )
    parser.add_argument(
        '--seeds',
        nargs='+',
        type=int,
        default=[*SEEDS],
        help='Default: those of the plan',
    )
    parser.add_argument(
        '--rungs',
        nargs='+',
        default=MAIN,
        choices=FROM_SCRATCH,
        metavar='RUNG',
        help=f'{", ".join(FROM_SCRATCH)}. Default: those of the plan',
    )
    parser.add_argument(
        '--ended',
        action='store_true',
        help='no more seeds will come: verdicts of those that are there. '
        'Default: verdicts where all seeds are there',
    )
    args = parser.parse_args()
    if args.command == 'table':
        print(table(args.rows, args.ended))
        return
    torch.set_num_threads(1)
    trained, tested = (
        read_pictures(args.data, split, 0, None) for split in ('train', 'test')
    )
    if args.command == 'replace':
        run_replaced(args.seeds, trained, tested, args.rows, args.work_dir)
        return
    run_missing(
        list(args.rungs), args.seeds, trained, tested, args.rows, args.work_dir
    )


if __name__ == '__main__':
    main()
