"""What recording costs: a recorded forward pass over a bare one.

    python -m tests.zoo.recording_time
    python -m tests.zoo.recording_time --command timm:resnet50 --images FOLDER

CPU time of one thread, or time by the clock of several; evaluation mode. A
round is a bare pass and a recorded one; the table gives the median of the
rounds' ratios with the quartiles, and both medians. Networks of libraries
that are not installed are left out.

With ``--command``: the time by the clock of ``mmstepnet stiffness``
without the start of Python, its page included, over that of a loop that
builds the same model and runs it over the same pictures.
"""

import argparse
import io
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path

import torch
import torch.nn as nn

from mmstepnet.cli.arguments import build_parser
from mmstepnet.cli.commands import _samples, run_stiffness
from mmstepnet.cli.models import load_model
from mmstepnet.stiffness import TrajectoryRecorder


def of_timm(name: str, batch: int) -> Callable:
    """A model of timm on images of 224 px."""
    def build() -> tuple[nn.Module, torch.Tensor]:
        import timm
        return timm.create_model(name), torch.randn(batch, 3, 224, 224)
    return build


def gpt2() -> tuple[nn.Module, torch.Tensor]:
    """GPT-2 of 12 layers over 256 tokens."""
    from transformers import GPT2Config, GPT2Model
    return GPT2Model(GPT2Config(use_cache=False)), torch.arange(256)[None]


NETWORKS = {
    'ResNet-50, batch 8': of_timm('resnet50', 8),
    'ConvNeXt-T, batch 8': of_timm('convnext_tiny', 8),
    'ViT-S, batch 8': of_timm('vit_small_patch16_224', 8),
    'ResNet-50, batch 4': of_timm('resnet50', 4),
    'ConvNeXt-T, batch 4': of_timm('convnext_tiny', 4),
    'ViT-S, batch 4': of_timm('vit_small_patch16_224', 4),
    'ViT-Ti, batch 1': of_timm('vit_tiny_patch16_224', 1),
    'GPT-2, 256 tokens, batch 1': gpt2,
}


def seconds(run: Callable, clock: Callable) -> float:
    """What a run takes by a clock."""
    start = clock()
    run()
    return clock() - start


def compared(name: str, bare: list[float], recorded: list[float]) -> list[str]:
    """A row of the table."""
    low, ratio, high = statistics.quantiles(
        [b / a for a, b in zip(bare, recorded)], n=4)
    medians = [f'{1000 * statistics.median(t):.1f}' for t in (bare, recorded)]
    return [name, f'{ratio:.3f}', f'{low:.3f} to {high:.3f}', *medians]


@torch.no_grad()
def bare_loop(args: argparse.Namespace) -> None:
    """What the command does, without measuring."""
    for name in args.models:
        named = load_model(name)
        named.model.eval()
        for batch, *_ in _samples(named, name, args):
            named.model(batch)


def command_row(name: str, images: Path, samples: int,
                rounds: int) -> list[str]:
    """The whole command over the bare loop."""
    bare, recorded = [], []
    with tempfile.TemporaryDirectory() as out:
        args = build_parser().parse_args([
            'stiffness', name, '--images', str(images), '--samples',
            str(samples), '--batch-size', '8', '--out', out])
        for _ in range(rounds):
            bare.append(seconds(lambda: bare_loop(args), time.perf_counter))
            with redirect_stdout(io.StringIO()):
                recorded.append(
                    seconds(lambda: run_stiffness(args), time.perf_counter))
    return compared(f'{name}, {samples} pictures', bare, recorded)


def row(name: str, rounds: int) -> list[str]:
    """A recorded pass over a bare one."""
    clock = (time.process_time if torch.get_num_threads() == 1
             else time.perf_counter)
    model, x = NETWORKS[name]()
    model.eval()
    recorder = TrajectoryRecorder(model)
    bare, recorded = [], []
    with torch.no_grad():
        for _ in range(rounds + 2):
            bare.append(seconds(lambda: model(x), clock))
            with recorder:
                recorded.append(seconds(lambda: model(x), clock))
    # The first rounds find out what the later ones know.
    return compared(name, bare[2:], recorded[2:])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('networks', nargs='*', metavar='NETWORK',
                        help='beginnings of their names; all by default')
    parser.add_argument('--rounds', type=int, default=15)
    parser.add_argument('--threads', type=int, default=1)
    parser.add_argument('--command', nargs='+', metavar='MODEL', default=())
    parser.add_argument('--images', type=Path)
    parser.add_argument('--samples', type=int, default=128)
    args = parser.parse_args()
    warnings.simplefilter('ignore')
    torch.set_num_threads(args.threads)
    print('| network | recorded over bare | quartiles | bare (ms) | recorded '
          '(ms) |\n|---|---|---|---|---|')
    for name in args.command:
        print('|', ' | '.join(command_row(
            name, args.images, args.samples, args.rounds)), '|', flush=True)
    for name in () if args.command else NETWORKS:
        library = 'transformers' if NETWORKS[name] is gpt2 else 'timm'
        if name.startswith(tuple(args.networks) or '') and find_spec(library):
            print('|', ' | '.join(row(name, args.rounds)), '|', flush=True)


if __name__ == '__main__':
    main()
