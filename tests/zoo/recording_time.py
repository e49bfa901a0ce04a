"""What recording costs: a recorded forward pass over a bare one.

    OMP_NUM_THREADS=1 python -m tests.zoo.recording_time

CPU time of one thread, evaluation mode. A round is a bare pass and a recorded
one; the table gives the median of the rounds' ratios with the quartiles, and
both medians. Networks of libraries that are not installed are left out.
"""

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from importlib.util import find_spec

import torch
import torch.nn as nn

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
    'ResNet-50, batch 4': of_timm('resnet50', 4),
    'ConvNeXt-T, batch 4': of_timm('convnext_tiny', 4),
    'ViT-S, batch 4': of_timm('vit_small_patch16_224', 4),
    'ViT-Ti, batch 1': of_timm('vit_tiny_patch16_224', 1),
    'GPT-2, 256 tokens, batch 1': gpt2,
}


def seconds(run: Callable) -> float:
    """CPU time of the process."""
    start = time.process_time()
    run()
    return time.process_time() - start


def row(name: str, rounds: int) -> list[str]:
    """What stands in the table."""
    model, x = NETWORKS[name]()
    model.eval()
    recorder = TrajectoryRecorder(model)
    bare, recorded = [], []
    with torch.no_grad():
        for _ in range(rounds + 2):
            bare.append(seconds(lambda: model(x)))
            with recorder:
                recorded.append(seconds(lambda: model(x)))
    # The first rounds find out what the later ones know.
    bare, recorded = bare[2:], recorded[2:]
    low, ratio, high = statistics.quantiles(
        [b / a for a, b in zip(bare, recorded)], n=4)
    medians = [f'{1000 * statistics.median(t):.1f}' for t in (bare, recorded)]
    return [name, f'{ratio:.3f}', f'{low:.3f} to {high:.3f}', *medians]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('networks', nargs='*', metavar='NETWORK',
                        help='beginnings of their names; all by default')
    parser.add_argument('--rounds', type=int, default=15)
    args = parser.parse_args()
    warnings.simplefilter('ignore')
    torch.set_num_threads(1)
    print('| network | recorded over bare | quartiles | bare (ms) | recorded '
          '(ms) |\n|---|---|---|---|---|')
    for name in NETWORKS:
        library = 'transformers' if NETWORKS[name] is gpt2 else 'timm'
        if name.startswith(tuple(args.networks) or '') and find_spec(library):
            print('|', ' | '.join(row(name, args.rounds)), '|', flush=True)


if __name__ == '__main__':
    main()
