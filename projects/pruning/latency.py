"""Time of networks without some of their blocks.

    python -m projects.pruning.latency --data data --clock cpu --threads 1

Question 6 of PLAN_FINE_TUNING.md: the whole network and those without blocks
take turns.
"""

import argparse
import copy
from pathlib import Path

import torch
import torch.nn as nn

from benchmarks.rounds import (
    Timed,
    add_arguments,
    check_arguments,
    measure,
    set_threads,
)
from mmstepnet import block_scores, remove_blocks

from .curves import NETWORKS, load, multiplications


class Inference(Timed):
    """One pass of one batch."""

    def __init__(self, args: argparse.Namespace, model: nn.Module,
                 x: torch.Tensor):
        super().__init__(args)
        self.model, self.x = model.to(args.device), x.to(args.device)

    @torch.inference_mode()
    def step(self) -> torch.Tensor:
        return self.model(self.x)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser, rounds=20, warmup=3)
    parser.add_argument('--data', type=Path, required=True)
    parser.add_argument('--networks', nargs='+', default=list(NETWORKS),
                        choices=NETWORKS)
    args = parser.parse_args()
    check_arguments(parser, args)
    set_threads(args)
    print('| network | blocks removed | multiplications left, % | '
          'time, batch 1 | time, batch 32 |\n' + '|---' * 5 + '|')
    for network in args.networks:
        model, scored, x, _ = load(network, args.data)
        found = block_scores(model, scored)
        order = sorted(found, key=found.get)
        models = {0: model}
        for count in (round(len(order) / 3), len(order) // 2):
            models[count] = copy.deepcopy(model)
            remove_blocks(models[count], order[:count], x[:1])
        times = [measure({str(count): Inference(args, each, x[:size])
                          for count, each in models.items()}, args)
                 for size in (1, 32)]
        whole = multiplications(model, x)
        for count, each in models.items():
            cells = [f'{row["ratio"]:.2f} ({row["low"]:.2f} to '
                     f'{row["high"]:.2f})' for row in (
                         found[str(count)] for found in times)]
            print(f'| {network} | {count} of {len(order)} | '
                  f'{100 * multiplications(each, x) / whole:.1f} | '
                  f'{" | ".join(cells)} |', flush=True)


if __name__ == '__main__':
    main()
