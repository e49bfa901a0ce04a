"""The ladder on a GPU: long trainings, and a rate for each rung.

    python -m projects.ladder.gpu run --data data --minutes 60
    python -m projects.ladder.gpu table

It goes on where it was stopped. It was not run on a GPU; README.md says what
it does.
"""

import argparse
import io
import math
import time
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from mmstepnet.files import write_whole

from . import scratch
from .networks import draw_body
from .pictures import CLASSES, draw_crops, read_pictures
from .rows import append_row, describe_program, markdown, read_rows
from .rungs import FROM_SCRATCH

ROWS = scratch.ROWS.with_name('gpu')
NETWORKS = 'resnet20', 'resnet18'
LENGTHS = 20, 30, 45, 68, 102, 153
"""Epochs, each half as many again as those before."""
ENOUGH = 0.3
"""Points. A training is long enough where the next length gains less."""
RATES = 0.05, 0.1, 0.2, 0.4, 0.8
SEARCH_SEEDS, SEEDS = range(100, 103), range(12)
"""The first of the former chooses the rate, all of them the length."""
HELD_OUT = 0.1
"""Share of the training pictures that choose rates and length."""

BATCH = 256
PEAK = 0.2
"""Share of the steps after which the rate falls."""
MOMENTUM, DECAY, SMOOTHING = 0.9, 5e-4, 0.1
KEPT_EVERY = 60.0
"""Seconds after which a run is kept, at the end of an epoch."""
PUBLISHED = 91.7
"""Of a ResNet-20 that others have trained, without JPEG."""


class Run(NamedTuple):
    """One training."""

    network: str
    rung: str
    epochs: int
    rate: float
    seed: int

    @property
    def is_search(self) -> bool:
        """Whether pictures that are held out choose something by it."""
        return self.seed in SEARCH_SEEDS

    def kept(self, work_dir: Path) -> Path:
        """The file that holds it as far as it came."""
        return work_dir / ('_'.join(map(str, self)) + '.pt')


Rows = dict[Run, dict]


def plan_runs(rows: Rows, network: str, rungs: list[str]) -> Iterator[Run]:
    """Give run after run: the length, each rung's rate, seed by seed.

    Args:
        rows (dict): Each run has its row here before the next one is asked
            for.
        network (str): One of :data:`NETWORKS`.
        rungs (list): Of :data:`FROM_SCRATCH`.
    """
    epochs = yield from find_length(rows, network)
    rates = {}
    for rung in rungs:
        rates[rung] = yield from search_rate(rows, network, rung, epochs)
    for seed in SEEDS:
        for rung in rungs:
            yield Run(network, rung, epochs, rates[rung], seed)


def find_length(rows: Rows, network: str) -> Generator[Run, None, int]:
    """Train the plain network longer and longer, until that gains little.

    Returns:
        int: The epochs that are enough, or the most that are tried.
    """
    short, before = 0, -math.inf
    for epochs in LENGTHS:
        rate = yield from search_rate(rows, network, 'plain', epochs)
        runs = [
            Run(network, 'plain', epochs, rate, seed) for seed in SEARCH_SEEDS
        ]
        yield from runs
        mean = float(np.mean([rows[run]['accuracy'] for run in runs]))
        if mean - before < ENOUGH:
            break
        short, before = epochs, mean
    return short


def search_rate(
    rows: Rows, network: str, rung: str, epochs: int
) -> Generator[Run, None, float]:
    """Try all rates.

    Returns:
        float: The one of the lowest cross-entropy. A training that diverged
        has none.
    """
    runs = [
        Run(network, rung, epochs, rate, SEARCH_SEEDS[0]) for rate in RATES
    ]
    yield from runs
    losses = {run.rate: rows[run]['loss'] for run in runs}
    return min(
        losses,
        key=lambda rate: math.inf if losses[rate] is None else losses[rate],
    )


class Pictures:
    """All pictures, on the device from the start.

    Args:
        trained (tuple): Pixels and classes to train with, sorted by class, of
            each as many.
        tested (tuple): To test with.
        device (torch.device): Where they are.
    """

    def __init__(
        self,
        trained: scratch.Pictures,
        tested: scratch.Pictures,
        device: torch.device,
    ):
        self.device = device
        self.all = tuple(part.to(device) for part in trained)
        self.tested = tuple(part.to(device) for part in tested)
        each = len(trained[1]) // CLASSES
        held_out = torch.arange(len(trained[1])) % each >= round(
            (1 - HELD_OUT) * each
        )
        self.most, self.held_out = (
            tuple(part[chosen].to(device) for part in trained)
            for chosen in (~held_out, held_out)
        )

    def of(self, run: Run) -> tuple[scratch.Pictures, scratch.Pictures]:
        """Pictures to train and to test with."""
        if run.is_search:
            return self.most, self.held_out
        return self.all, self.tested


class Seed:
    """What all rungs of a seed share: body, order, crops and mirrors.

    They are drawn on the CPU, so that every device is given the same.

    Args:
        run (Run): Network, epochs and seed decide all of it.
    """

    def __init__(self, run: Run):
        generator = torch.Generator().manual_seed(run.seed)
        self.body = draw_body(run.network, generator)
        self.first, *self.epochs = torch.randint(
            2**31, (1 + run.epochs,), generator=generator
        ).tolist()

    def draw_epoch(
        self, pictures: scratch.Pictures, epoch: int
    ) -> scratch.Pictures:
        """Pictures in the order and the crops of an epoch.

        Half of them are mirrored in the first epoch, and in each epoch those
        that were not in the one before.
        """
        pixels, labels = pictures
        n = len(labels)
        mirrored = (
            torch.rand(n, generator=torch.Generator().manual_seed(self.first))
            < 0.5
        )
        generator = torch.Generator().manual_seed(self.epochs[epoch])
        order = torch.randperm(n, generator=generator).to(pixels.device)
        crops = draw_crops(pixels, generator, mirrored ^ (epoch % 2 == 1))
        return crops[order], labels[order]


@cache
def place(
    network: str, rung: str, device: torch.device
) -> tuple[nn.Module, nn.Module, list[nn.Parameter]]:
    """A network on the device, the same one for all runs of a rung.

    Returns:
        tuple: The network; the same, compiled where the device is a GPU; and
        what is trained.
    """
    body = draw_body(network, torch.Generator())
    model, parameters = scratch.build_rung(network, body, 0, rung)
    model.to(device)
    if device.type != 'cuda':
        return model, model, parameters
    return model, torch.compile(model, mode='reduce-overhead'), parameters


def rate_at(step: int, steps: int, rate: float) -> float:
    """The rate of a step, a triangle."""
    return float(np.interp(step + 0.5, (0, PEAK * steps, steps), (0, rate, 0)))


def train(
    run: Run,
    pictures: scratch.Pictures,
    device: torch.device,
    kept: Path,
    deadline: float,
) -> tuple[nn.Module, float] | None:
    """Train a network, or go on with it where it was kept.

    Args:
        run (Run): Which one.
        pictures (tuple): Pixels and classes, on the device.
        device (torch.device): Likewise.
        kept (Path): Where it is kept.
        deadline (float): When to stop, by ``time.monotonic()``.

    Returns:
        tuple: The network and the seconds that it took, those before a stop
        included. None: the time was over.
    """
    model, compiled, parameters = place(run.network, run.rung, device)
    seed = Seed(run)
    start, _ = scratch.build_rung(run.network, seed.body, run.seed, run.rung)
    model.load_state_dict(start.state_dict())
    optimizer = torch.optim.SGD(
        parameters,
        lr=run.rate,
        momentum=MOMENTUM,
        weight_decay=DECAY,
        nesterov=True,
    )
    done, seconds = 0, 0.0
    if kept.is_file():
        state = torch.load(kept, map_location=device)
        model.load_state_dict(state['model'])
        optimizer.load_state_dict(state['optimizer'])
        done, seconds = state['epochs'], state['seconds']
    begun = written = time.monotonic()
    batch = min(BATCH, len(pictures[1]))
    each = len(pictures[1]) // batch  # graphs want batches of one size
    model.train()
    for epoch in range(done, run.epochs):
        pixels, labels = seed.draw_epoch(pictures, epoch)
        for k in range(each):
            chosen = slice(k * batch, (k + 1) * batch)
            for group in optimizer.param_groups:
                group['lr'] = rate_at(
                    epoch * each + k, run.epochs * each, run.rate
                )
            torch.compiler.cudagraph_mark_step_begin()
            with torch.autocast(
                device.type, torch.bfloat16, cache_enabled=False
            ):
                scores = compiled(scratch.prepare(pixels[chosen]))
            optimizer.zero_grad()
            F.cross_entropy(
                scores.float(), labels[chosen], label_smoothing=SMOOTHING
            ).backward()
            optimizer.step()
        now = time.monotonic()
        is_over = now > deadline
        if is_over or now > written + KEPT_EVERY:
            buffer = io.BytesIO()
            torch.save(
                dict(
                    model=model.state_dict(),
                    optimizer=optimizer.state_dict(),
                    epochs=epoch + 1,
                    seconds=seconds + now - begun,
                ),
                buffer,
            )
            write_whole(kept, buffer.getvalue())
            written = now
        if is_over:
            return None
    if device.type == 'cuda':
        torch.cuda.synchronize()
    return model, seconds + time.monotonic() - begun


def measure(
    run: Run, pictures: Pictures, work_dir: Path, deadline: float
) -> dict | None:
    """Train a rung and test it, in float32.

    Returns:
        dict: The row, or None where the time was over.
    """
    trained, tested = pictures.of(run)
    found = train(run, trained, pictures.device, run.kept(work_dir), deadline)
    if found is None:
        return None
    model, seconds = found
    row = dict(run._asdict(), **scratch.test(model, tested))
    if run.is_search:
        del row['answers']
    if not math.isfinite(row['loss']):
        row['loss'] = None
        row.pop('gates', None)
    name = (
        torch.cuda.get_device_name(pictures.device)
        if pictures.device.type == 'cuda'
        else 'cpu'
    )
    return dict(
        row,
        numbers=sum(p.numel() for p in model.parameters() if p.requires_grad),
        seconds=round(seconds, 1),
        dtype='bfloat16',
        device=name,
        body=scratch.digest(Seed(run).body),
        **describe_program(),
    )


def by_run(folder: Path) -> Rows:
    """All rows of a folder."""
    return {
        Run(*(row[key] for key in Run._fields)): row
        for row in read_rows(folder)
    }


def run_missing(
    networks: list[str],
    rungs: list[str],
    pictures: Pictures,
    folder: Path,
    work_dir: Path,
    deadline: float,
) -> None:
    """Train what has no row yet, until the time is over."""
    rows = by_run(folder)
    for network in networks:
        for run in plan_runs(rows, network, rungs):
            if run in rows:
                continue
            row = (
                None
                if time.monotonic() > deadline
                else measure(run, pictures, work_dir, deadline)
            )
            if row is None:
                print('The time is over; the same command goes on.')
                return
            append_row(folder / f'{network}.jsonl', row)
            rows[run] = row
            print(
                f'{run}: {row["accuracy"]:.2f} %, {row["seconds"]} s',
                flush=True,
            )
            run.kept(work_dir).unlink(missing_ok=True)


def length_lines(rows: Rows, network: str) -> list[list[str]]:
    """Accuracies of the plain network, on held-out pictures, by epochs."""
    lines = []
    for epochs in LENGTHS:
        own = [
            run
            for run in rows
            if run.is_search and run[:3] == (network, 'plain', epochs)
        ]
        repeated = {run.rate for run in own if run.seed != SEARCH_SEEDS[0]}
        accuracies = [
            rows[run]['accuracy'] for run in own if run.rate in repeated
        ]
        if accuracies:
            lines.append(
                [
                    network,
                    str(epochs),
                    f'{min(repeated):g}',
                    f'{np.mean(accuracies):.2f}',
                    str(len(accuracies)),
                ]
            )
    return lines


def table(folder: Path = ROWS) -> str:
    """All that the rows say; no verdicts, which have no plan here."""
    rows = by_run(folder)
    lengths, means, differences, notes = [], [], [], []
    for network in NETWORKS:
        lengths += length_lines(rows, network)
        own = [
            row
            for run, row in rows.items()
            if run.network == network and not run.is_search
        ]
        means += [[network, *line] for line in scratch.mean_rows(own)]
        differences += [
            [network, *scratch.cells(*found)]
            for found in scratch.explore(
                own, (*scratch.QUESTIONS, *scratch.EXPLORED)
            )
        ]
        plain = scratch.accuracies(own, 'plain').values()
        if network == 'resnet20' and plain:
            notes.append(
                f'Plain is {PUBLISHED - np.mean([*plain]):.1f} points below '
                f'the published {PUBLISHED} %; JPEG is in it.\n'
            )
    return '\n'.join(
        [
            markdown(
                ['network', 'epochs', 'rate', 'plain, held out, %', 'seeds'],
                lengths,
            ),
            markdown(['network', *scratch.MEANS], means),
            markdown(
                ['network', 'difference', 'seeds', 'points', '95 % interval'],
                differences,
            ),
            *notes,
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        'command',
        choices=['run', 'table'],
        help='make the rows, or print the table of those that are there',
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
        default=scratch.WORK_DIR / 'gpu',
        help='folder of what a stopped run goes on from. Default: '
        'work_dirs/ladder/gpu',
    )
    parser.add_argument(
        '--networks',
        nargs='+',
        default=NETWORKS,
        choices=NETWORKS,
        help='Default: all of them',
    )
    parser.add_argument(
        '--rungs',
        nargs='+',
        default=[*FROM_SCRATCH],
        choices=FROM_SCRATCH,
        metavar='RUNG',
        help=f'{", ".join(FROM_SCRATCH)}. Default: all of them',
    )
    parser.add_argument(
        '--minutes',
        type=float,
        default=math.inf,
        help='stop after the epoch in which they are over. Default: at the '
        'end',
    )
    parser.add_argument(
        '--device',
        type=torch.device,
        default='cuda',
        help='Default: %(default)s',
    )
    args = parser.parse_args()
    if args.command == 'table':
        print(table(args.rows))
        return
    deadline = time.monotonic() + 60 * args.minutes
    pictures = Pictures(
        *(
            read_pictures(args.data, split, 0, None)
            for split in ('train', 'test')
        ),
        args.device,
    )
    run_missing(
        args.networks, args.rungs, pictures, args.rows, args.work_dir, deadline
    )


if __name__ == '__main__':
    main()
