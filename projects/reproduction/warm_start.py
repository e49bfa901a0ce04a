"""What a pretrained plain network loses when an attention is put into it.

Inserts attentions into the trained plain model of a config, with the paper's
gate and with init_step=1.0, and evaluates before any further training and
during it, the plain model too.
"""

import argparse
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from mmengine.config import Config
from mmengine.runner import Runner
from rich.console import Console

from mmstepnet.attentions import ATTENTIONS
from mmstepnet.checks import positive_float, positive_int
from mmstepnet.jobs.checkpoint import load_weights, read_checkpoint
from mmstepnet.jobs.data_check import check_data
from projects.reproduction import save_result
from projects.reproduction.provenance import provenance
from projects.reproduction.warm_start_results import warm_start_sheet

ROOT = Path(__file__).resolve().parents[2]


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('config', help='config of the plain network')
    parser.add_argument('checkpoint', help='its trained checkpoint')
    parser.add_argument('--attentions', nargs='+', default=['StepNet', 'SE'])
    parser.add_argument(
        '--epochs', type=positive_int, nargs='+', default=[1],
        help='epochs of further training after which to evaluate')
    parser.add_argument(
        '--lr', type=positive_float, default=0.01,
        help='their constant learning rate')
    parser.add_argument(
        '--seed', type=int, default=0, help='of the further training')
    parser.add_argument(
        '--work-dir', type=Path, default=Path('work_dirs/warm_start'))
    parser.add_argument(
        '--out', type=Path, metavar='FILE.json',
        help='gets the results. Default: warm_start.json in --work-dir')
    return parser.parse_args()


def insert(args: argparse.Namespace, attention: str | None,
           init_step: float | None) -> Config:
    """Config of the plain network, or of it with an attention put in."""
    cfg = Config.fromfile(args.config)
    if attention is not None:
        cfg.model.backbone.attention = dict(
            type=attention, init_step=init_step)
    cfg.load_from = args.checkpoint
    cfg.work_dir = str(args.work_dir / f'{attention}_{init_step}')
    cfg.randomness = dict(seed=args.seed)
    cfg.optim_wrapper.optimizer.lr = args.lr
    cfg.param_scheduler = None
    cfg.train_cfg.update(max_epochs=max(args.epochs), val_interval=1)
    return cfg


def check_arguments(args: argparse.Namespace) -> None:
    """Refuse what would be found out only after the first training.

    Raises:
        ValueError: The config is not plain.
        KeyError: An attention is not registered.
    """
    backbone = Config.fromfile(args.config).model.backbone
    if backbone.get('attention', True) is not None:
        raise ValueError(f'{args.config}: the backbone must be a plain one of '
                         'this package, attention=None')
    for attention in args.attentions:
        ATTENTIONS.find(attention)


def measure(cfg: Config, checkpoint: dict,
            epochs: Sequence[int]) -> tuple[str, float, list[float]]:
    """Name of the first metric, its value at once and after these epochs."""
    runner = Runner.from_cfg(cfg)
    if cfg.model.backbone.attention is None:
        load_weights(runner.model, checkpoint, cfg.load_from)
    before = runner.val()
    name = next(iter(before))
    runner = Runner.from_cfg(cfg)
    runner.train()
    values, _ = runner.message_hub.get_scalar(f'val/{name}').data
    return name, before[name], [float(values[epoch - 1]) for epoch in epochs]


def main() -> None:
    args = parse_args()
    args.epochs = sorted(set(args.epochs))
    check_arguments(args)
    checkpoint = read_checkpoint(args.checkpoint)
    check_data(Config.fromfile(args.config), 'train', 'val')
    rows = []
    for attention, init_step in [(None, None),
                                 *product(args.attentions, (None, 1.0))]:
        name, before, after = measure(insert(args, attention, init_step),
                                      checkpoint, args.epochs)
        rows.append(dict(attention=attention, init_step=init_step,
                         metric=name, before=before, after=after))
    found = dict(
        config=Path(args.config).stem, seed=args.seed,
        checkpoint=Path(args.checkpoint).name, epochs=args.epochs,
        lr=args.lr, rows=rows, starts=[provenance(ROOT)])
    save_result(args.out or args.work_dir / 'warm_start.json', found)
    warm_start_sheet([found]).print(Console())


if __name__ == '__main__':
    main()
