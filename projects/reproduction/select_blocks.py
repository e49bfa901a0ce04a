"""Propose the few stiff blocks of a network that should carry StepNet.

Measures the stiffness of a trained plain ResNet and prints the stiffest
blocks as a config fragment (the lottery-ticket hypothesis, paper §3.1).
--out writes it as a config over CONFIG, ready to be trained.
"""

import argparse
import math
import os
from pathlib import Path

import torch.nn as nn
from mmengine.config import Config
from mmengine.registry import MODELS
from rich.console import Console
from rich.table import Table

from mmstepnet.checks import positive_int
from mmstepnet.jobs.checkpoint import load_weights, read_checkpoint
from mmstepnet.jobs.job import add_config_options, load_config
from mmstepnet.jobs.patches import patch_mmengine
from mmstepnet.stiffness import block_stiffness
from projects.reproduction.block_selection import (
    CHOICES,
    backbone_names,
    check_structure,
    choose_blocks,
    with_stepnet,
)
from tools.analysis_tools.stiffness import SPLITS, build_runner, measure

STIFF_SHARE = 0.1
"""The paper finds most stiffness proportions at or below it (Fig. 6)."""


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('config', help='config of a plain network')
    parser.add_argument('checkpoint', help='its trained checkpoint')
    parser.add_argument(
        '--count', type=positive_int, metavar='K',
        help='how many blocks. Default: a tenth of those measured, the share '
        "of the paper's Fig. 6, and at least one")
    parser.add_argument(
        '--which', choices=CHOICES, default=CHOICES[0],
        help='which of them. The least stiff and random ones are what the '
        'stiffest are compared with. Default: stiffest')
    parser.add_argument(
        '--split', choices=SPLITS, default='train',
        help='data to measure on. Default: train, so that no test image has '
        'a say in the architecture')
    parser.add_argument(
        '--max-samples', type=positive_int, default=1000, metavar='N',
        help='measure N samples, evenly taken. Default: 1000')
    parser.add_argument(
        '--out', type=Path, metavar='CONFIG.py', help='write a config')
    parser.add_argument(
        '--device', help='such as cpu or cuda:1. Default: a GPU if there is')
    add_config_options(parser)
    args = parser.parse_args()
    if args.out is not None and args.out.suffix != '.py':
        parser.error(f'--out must end in .py, got {str(args.out)!r}')
    return args


def check_counterpart(cfg: Config, model: nn.Module) -> None:
    """Build what will be proposed, before anything is measured."""
    proposed = Config(dict(backbone=cfg.model.backbone))
    proposed.merge_from_dict(
        dict(backbone=with_stepnet(cfg.model.backbone, ['layer1'])))
    check_structure(model.backbone, MODELS.build(proposed.backbone))


def main() -> None:
    args = parse_args()
    patch_mmengine(args.trust_checkpoint)
    checkpoint = read_checkpoint(args.checkpoint, args.trust_checkpoint)
    cfg = load_config(args)
    runner = build_runner(
        cfg, Path(cfg.work_dir) / 'select_blocks', args.split,
        args.max_samples)
    check_counterpart(cfg, runner.model)
    load_weights(runner.model, checkpoint, args.checkpoint)
    measured = measure(runner, device=args.device)

    names = backbone_names(measured.blocks)
    nsi = measured.nsi()
    stiffness = block_stiffness(nsi, measured.stages)
    count = args.count or max(1, math.floor(STIFF_SHARE * len(names)))
    chosen = choose_blocks(names, stiffness, count, args.which)
    table = Table('block', 'mean NSI', 'stiffness', 'chosen')
    for name, mean, value in zip(names, nsi.mean(0), stiffness):
        table.add_row(name, f'{mean:.4f}', f'{value:.4f}',
                      '*' if name in chosen else '')
    Console().print(table)
    share = sum(value for name, value in zip(names, stiffness)
                if name in chosen) / (stiffness.sum() or 1)
    print(f'{count} of {len(names)} measured blocks have {share:.0%} '
          'of the stiffness. Over this config, for StepNet in them:\n')
    model = dict(backbone=with_stepnet(cfg.model.backbone, chosen))
    source = Config(dict(model=model)).pretty_text
    print(source)
    if args.out is not None:
        base = os.path.relpath(args.config, args.out.parent)
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(
            f'# {count} {args.which} blocks of {Path(args.checkpoint).name}, '
            f'{len(measured)} images of {args.split}.\n'
            f'_base_ = [{base!r}]\n\n{source}')
        print(f'written: {args.out}')


if __name__ == '__main__':
    main()
