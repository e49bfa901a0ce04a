"""What ``tools/test.py`` does."""

import os
from argparse import Namespace
from functools import partial

import mmengine
import torch.nn as nn
from mmengine.config import Config
from mmengine.dist import is_main_process
from mmengine.registry import MODELS
from mmengine.runner import CheckpointLoader, Runner

from mmstepnet.files import write_whole

from .checkpoint import load_weights
from .config_check import check_data
from .job import host_of_config, load_config, run_job


def test(args: Namespace) -> None:
    """Test the config and the checkpoint of a command line."""
    cfg = load_config(args)
    check_data(cfg, 'test')
    cfg.load_from, cfg.resume = args.checkpoint, False
    if args.out and args.out.endswith('.pkl'):
        dump_predictions(cfg, args.out)
    if args.show_dir:
        draw_predictions(cfg, args.show_dir)
    run_job(cfg, partial(_test, args))


def _test(args: Namespace, runner: Runner) -> None:
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
        raise SystemExit(
            "--show-dir needs a host's hook that draws, such as "
            "default_hooks.visualization=dict(type='DetVisualizationHook'), "
            f'and the config has {hook or "none"}'
        )
    hook.update(settings)
    if 'out_dir' not in settings and 'test_out_dir' not in settings:
        cfg.visualizer.save_dir = folder  # where MMSegmentation looks
