"""What a pretrained plain network loses when an attention is put into it.

Inserts attentions into the trained plain model of an MMPretrain config, with
the paper's gate and with init_step=1.0, and evaluates before any further
training and after it.
"""

import argparse
from pathlib import Path

import mmengine
from mmengine.config import Config
from mmengine.runner import Runner
from rich.console import Console
from rich.table import Table

from mmstepnet.engine.checkpoint import check_checkpoint
from mmstepnet.engine.data_check import check_data


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('config', help='config of the plain network')
    parser.add_argument('checkpoint', help='its trained checkpoint')
    parser.add_argument(
        '--attentions', nargs='+', default=['StepNet', 'SE'])
    parser.add_argument(
        '--epochs', type=int, default=1, help='epochs of further training')
    parser.add_argument(
        '--lr', type=float, default=0.01, help='their constant learning rate')
    parser.add_argument(
        '--work-dir', type=Path, default=Path('work_dirs/warm_start'))
    return parser.parse_args()


def insert(args: argparse.Namespace, attention: str,
           init_step: float | None) -> Config:
    """Config of the plain network with an attention put into it."""
    cfg = Config.fromfile(args.config)
    cfg.model.backbone.attention = dict(type=attention, init_step=init_step)
    cfg.load_from = args.checkpoint
    cfg.work_dir = str(args.work_dir / f'{attention}_{init_step}')
    cfg.optim_wrapper.optimizer.lr = args.lr
    cfg.param_scheduler = None
    cfg.train_cfg.update(max_epochs=args.epochs, val_interval=args.epochs)
    return cfg


def main() -> None:
    args = parse_args()
    check_checkpoint(args.checkpoint)
    check_data(Config.fromfile(args.config), 'train', 'val')
    table = Table('attention', 'init_step', 'before', 'after')
    results = []
    for attention in args.attentions:
        for init_step in (None, 1.0):
            cfg = insert(args, attention, init_step)
            before = Runner.from_cfg(cfg).val()
            after = Runner.from_cfg(cfg)
            after.train()
            name = next(iter(before))
            last = after.message_hub.get_scalar(f'val/{name}').current()
            results.append(dict(attention=attention, init_step=init_step,
                                metric=name, before=before[name], after=last))
            table.add_row(attention, str(init_step), f'{before[name]:.2f}',
                          f'{last:.2f}')
    mmengine.dump(results, args.work_dir / 'warm_start.json')
    Console().print(table)


if __name__ == '__main__':
    main()
