"""Evaluate a checkpoint with any config of an OpenMMLab host."""

import argparse
import os

import mmengine
import torch.nn as nn
from mmengine.config import Config
from mmengine.dist import is_main_process
from mmengine.registry import MODELS

from mmstepnet.jobs.checkpoint import load_weights, read_checkpoint
from mmstepnet.jobs.data_check import check_data, named_data
from mmstepnet.jobs.job import (
    add_hooks,
    add_job_arguments,
    build_runner,
    find_host,
    load_config,
    named_weights,
    process_group,
)
from mmstepnet.jobs.patches import patch_mmengine, preload_checkpoint


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add_job_arguments(parser)
    parser.add_argument('checkpoint', help='checkpoint file')
    parser.add_argument(
        '--out', help='FILE.json gets the metrics, FILE.pkl the predictions')
    parser.add_argument(
        '--show-dir', metavar='DIR',
        help='draw what was found into the pictures and write them to DIR')
    args = parser.parse_args()
    if args.out and not args.out.endswith(('.json', '.pkl')):
        parser.error(f'--out must end in .json or .pkl, got {args.out!r}')
    return args


def dump_predictions(cfg: Config, path: str) -> None:
    """Make the evaluator write the predictions too."""
    # Masks need mmdet's own, which encodes them.
    name = ('mmdet.DumpDetResults'
            if find_host(cfg) == 'mmdet' else 'DumpResults')
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
        'PoseVisualizationHook': dict(enable=True, interval=1,
                                      out_dir=folder),
    }.get(str(hook.get('type')).rpartition('.')[2])
    if settings is None:
        raise ValueError(
            '--show-dir needs a host\'s hook that draws, such as '
            "default_hooks.visualization=dict(type='DetVisualizationHook'), "
            f'and the config has {hook or "none"}')
    hook.update(settings)
    if 'out_dir' not in settings and 'test_out_dir' not in settings:
        cfg.visualizer.save_dir = folder  # where MMSegmentation looks


def test(cfg: Config, args: argparse.Namespace,
         checkpoint: dict | None) -> None:
    """Run the test loop and write what was asked for."""
    runner = build_runner(cfg)
    if checkpoint is None:
        checkpoint = read_checkpoint(args.checkpoint)
    load_weights(built(runner.model), checkpoint, args.checkpoint)
    preload_checkpoint(args.checkpoint, checkpoint)
    metrics = runner.test()
    if args.out and args.out.endswith('.json') and is_main_process():
        mmengine.mkdir_or_exist(os.path.dirname(args.out) or '.')
        mmengine.dump(metrics, args.out)


def built(model: nn.Module | dict) -> nn.Module:
    """Build a model that its runner would build only when it tests."""
    return model if isinstance(model, nn.Module) else MODELS.build(model)


def main() -> None:
    args = parse_args()
    patch_mmengine(args.trust_checkpoint)
    # Of an address the processes of a node wait for one, once there are any.
    checkpoint = None if '://' in args.checkpoint else read_checkpoint(
        args.checkpoint, args.trust_checkpoint)
    cfg = load_config(args)
    cfg.load_from, cfg.resume = args.checkpoint, False
    if args.out and args.out.endswith('.pkl'):
        dump_predictions(cfg, args.out)
    if args.show_dir:
        draw_predictions(cfg, args.show_dir)
    check_data(cfg, 'test')
    add_hooks(cfg, 'DataCheckHook')
    with process_group(cfg), named_data(), named_weights(cfg):
        test(cfg, args, checkpoint)


if __name__ == '__main__':
    main()
