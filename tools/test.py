"""Evaluate a checkpoint with any config of an OpenMMLab host."""

import argparse
import os

import mmengine
import torch.nn as nn
from mmengine.config import Config
from mmengine.dist import is_main_process
from mmengine.registry import MODELS, RUNNERS
from mmengine.runner import CheckpointLoader

from mmstepnet.files import write_whole
from mmstepnet.jobs.checkpoint import load_weights
from mmstepnet.jobs.job import (
    add_job_options,
    host_of_config,
    load_config,
    process_group,
)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add_job_options(parser)
    parser.add_argument('checkpoint', help='checkpoint file or address')
    parser.add_argument(
        '--out', help='FILE.json gets the metrics, FILE.pkl the predictions'
    )
    parser.add_argument(
        '--show-dir',
        metavar='DIR',
        help='draw what was found into the pictures and write them to DIR',
    )
    args = parser.parse_args()
    if args.out and not args.out.endswith(('.json', '.pkl')):
        parser.error(f'--out must end in .json or .pkl, got {args.out!r}')
    return args


def dump_predictions(cfg: Config, path: str) -> None:
    """Make the evaluator write the predictions too."""
    # Masks need mmdet's own, which encodes them.
    is_detector = host_of_config(cfg) == 'mmdet'
    name = 'mmdet.DumpDetResults' if is_detector else 'DumpResults'
    evaluators = cfg.test_evaluator
    if not isinstance(evaluators, (list, tuple)):
        evaluators = [evaluators]
    cfg.test_evaluator = [*evaluators, dict(type=name, out_file_path=path)]


def draw_predictions(cfg: Config, folder: str) -> None:
    """Make the host's hook draw what was found into every picture."""
    folder = os.path.abspath(folder)  # not below MMDetection's work_dir
    hook = cfg.get('default_hooks', {}).get('visualization') or {}
    settings = {
        'DetVisualizationHook': dict(draw=True, test_out_dir=folder),
        'SegVisualizationHook': dict(draw=True, interval=1),
        'VisualizationHook': dict(enable=True, interval=1, out_dir=folder),
        'PoseVisualizationHook': dict(enable=True, interval=1, out_dir=folder),
    }.get(str(hook.get('type')).rpartition('.')[2])
    if settings is None:
        raise ValueError(
            "--show-dir needs a host's hook that draws, such as "
            "default_hooks.visualization=dict(type='DetVisualizationHook'), "
            f'and the config has {hook or "none"}'
        )
    hook.update(settings)
    if 'out_dir' not in settings and 'test_out_dir' not in settings:
        cfg.visualizer.save_dir = folder  # where MMSegmentation looks


def main() -> None:
    args = parse_args()
    cfg = load_config(args)
    cfg.load_from, cfg.resume = args.checkpoint, False
    if args.out and args.out.endswith('.pkl'):
        dump_predictions(cfg, args.out)
    if args.show_dir:
        draw_predictions(cfg, args.show_dir)
    with process_group(cfg):
        runner = RUNNERS.build(cfg)
        # FlexibleRunner builds its model only when it tests.
        model = (
            runner.model
            if isinstance(runner.model, nn.Module)
            else MODELS.build(runner.model)
        )
        load_weights(
            model,
            CheckpointLoader.load_checkpoint(args.checkpoint, 'cpu'),
            args.checkpoint,
        )
        metrics = runner.test()
        if (args.out or '').endswith('.json') and is_main_process():
            text = mmengine.dump(metrics, file_format='json')
            write_whole(args.out, f'{text}\n'.encode())


if __name__ == '__main__':
    main()
