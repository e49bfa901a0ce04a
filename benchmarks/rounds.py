"""Steps timed in rounds, which all contestants of a benchmark share."""

import argparse
import platform
import statistics
import sys
import time

import torch

from mmstepnet.checks import positive_int

CLOCKS = dict(wall=time.perf_counter, cpu=time.process_time)


class HelpFormatter(
    argparse.ArgumentDefaultsHelpFormatter,
    argparse.RawDescriptionHelpFormatter,
):
    """Gives each default, and leaves the lines of a description alone."""


def add_arguments(
    parser: argparse.ArgumentParser, rounds: int, warmup: int
) -> None:
    """Where, how often and by which clock to measure."""
    parser.add_argument(
        '--device',
        default='cpu',
        choices=['cpu', 'cuda'],
        help='where it is measured',
    )
    parser.add_argument(
        '--rounds',
        type=positive_int,
        default=rounds,
        help='rounds that are measured',
    )
    parser.add_argument(
        '--warmup', type=int, default=warmup, help='rounds before them'
    )
    parser.add_argument(
        '--threads',
        type=positive_int,
        default=None,
        help="CPU threads; None is PyTorch's choice",
    )
    parser.add_argument(
        '--clock',
        default='wall',
        choices=list(CLOCKS),
        help="cpu is the process's own time, for a machine "
        'that others load too; take --threads 1 with it',
    )


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Read the command line, and set the number of threads."""
    args = parser.parse_args()
    if args.clock == 'cpu' and args.device == 'cuda':
        parser.error('--clock cpu does not see what runs on a GPU; use wall')
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    return args


def machine(args: argparse.Namespace) -> dict:
    """What the figures were measured with."""
    device = (
        torch.cuda.get_device_name()
        if args.device == 'cuda'
        else platform.processor() or platform.machine()
    )
    return dict(
        torch=torch.__version__,
        device=device,
        threads=torch.get_num_threads(),
        clock=args.clock,
    )


class Timed:
    """A contestant; subclasses take one step in ``step``.

    Args:
        args (Namespace): The command line.
    """

    def __init__(self, args: argparse.Namespace):
        self.device = args.device
        self.clock = CLOCKS[args.clock]

    def step(self) -> object:
        raise NotImplementedError

    def time(self) -> float:
        """Seconds of one step."""
        self._synchronize()
        start = self.clock()
        self.step()
        self._synchronize()
        return self.clock() - start

    def _synchronize(self) -> None:
        if self.device == 'cuda':
            torch.cuda.synchronize()


def measure(
    contestants: dict[str, Timed], args: argparse.Namespace
) -> dict[str, dict]:
    """Let each take a step in every round.

    Args:
        contestants (dict[str, Timed]): By name; the first is the baseline.
        args (Namespace): The command line.

    Returns:
        dict[str, dict]: For each name the ``seconds`` of its steps;
        ``first``, those of the very first, which may compile; and ``ratio``,
        ``low`` and ``high``: median and quartiles of their ratios to the
        baseline's steps of the same round.
    """
    first, seconds = {}, {name: [] for name in contestants}
    rounds = args.warmup + args.rounds
    for round_ in range(rounds):
        for name, contestant in contestants.items():
            print(
                f'\rround {round_ + 1} of {rounds}: {name:30}',
                end='',
                file=sys.stderr,
                flush=True,
            )
            elapsed = contestant.time()
            first.setdefault(name, elapsed)
            if round_ >= args.warmup:
                seconds[name].append(elapsed)
    print(file=sys.stderr)
    baseline = seconds[next(iter(contestants))]
    result = {}
    for name, own in seconds.items():
        low, ratio, high = statistics.quantiles(
            [a / b for a, b in zip(own, baseline)], n=4
        )
        result[name] = dict(
            ratio=ratio, low=low, high=high, first=first[name], seconds=own
        )
    return result
