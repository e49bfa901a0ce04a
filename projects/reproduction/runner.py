"""One config with one seed: its training, its test and its row."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config

from mmstepnet.files import write_whole

from .metric_log import TEST, logged_losses, logged_metric
from .rows import RESULTS
from .stiffness import summarise_stiffness
from .tables import METRICS, ROOT, Cell

WORK_DIR = Path('work_dirs/paper')


def run(
    cell: Cell,
    seed: int,
    work_dir: Path = WORK_DIR,
    results: Path = RESULTS,
    gpus: int = 1,
) -> None:
    """Train and test a config and write its row, unless the row is there.

    An interrupted training goes on from its last checkpoint. One process at a
    time works on a config and seed.

    Args:
        cell (Cell): The config's place in a table.
        seed (int): Of data order, augmentation and initial weights.
        work_dir (Path): Gets ``CONFIG/seed_N/``, logs and checkpoints.
        results (Path): Gets ``CONFIG/seed_N.json``.
        gpus (int): Processes that share the images of a step. Defaults to 1.

    Raises:
        CalledProcessError: The training or the test failed.
        ValueError: The images of a step cannot be shared, or a number of the
            row is not finite.
    """
    row = results / cell.name / f'seed_{seed}.json'
    if row.is_file():
        return
    folder = work_dir / cell.name / f'seed_{seed}'
    cfg = Config.fromfile(cell.config)
    epochs = cfg.train_cfg.max_epochs
    checkpoint = folder / f'epoch_{epochs}.pth'
    options = [f'randomness.seed={seed}']
    note_start(folder)
    if not checkpoint.is_file():
        # With one, mmengine deletes the old checkpoint before it writes.
        keep = ['default_hooks.checkpoint.max_keep_ckpts=2']
        if base := cfg.get('auto_scale_lr', {}).get('base_batch_size'):
            if base % gpus:
                raise ValueError(
                    f'the {base} images of a step cannot be '
                    f'shared by {gpus} GPUs; take a number that '
                    f'divides {base}'
                )
            keep.append(f'train_dataloader.batch_size={base // gpus}')
        call(
            'train',
            gpus,
            cell.config,
            '--work-dir',
            folder,
            '--resume',
            '--cfg-options',
            *keep,
            *options,
        )
    metrics = folder / 'test_metrics.json'
    call(
        'test',
        gpus,
        cell.config,
        checkpoint,
        '--work-dir',
        folder / 'test',
        '--out',
        metrics,
        '--cfg-options',
        *options,
    )
    tests_on_validation = (
        cfg.val_dataloader.dataset == cfg.test_dataloader.dataset
    )
    write_row(
        row,
        collect(
            cell,
            folder,
            json.loads(metrics.read_text()),
            epochs,
            tests_on_validation,
        )
        | dict(config=cell.name, seed=seed),
    )


def call(tool: str, gpus: int, *args: Any) -> None:
    """Run ``tools/TOOL.py``; the projects' configs import from here."""
    launch = ['-m', 'torch.distributed.run', '--nproc-per-node', str(gpus)]
    command = [
        sys.executable,
        *launch * (gpus > 1),
        str(ROOT / 'tools' / f'{tool}.py'),
        *map(str, args),
        *['--launcher', 'pytorch'] * (gpus > 1),
    ]
    path = os.pathsep.join(
        filter(None, (str(ROOT), os.environ.get('PYTHONPATH')))
    )
    subprocess.run(command, check=True, env={**os.environ, 'PYTHONPATH': path})


def note_start(folder: Path) -> None:
    """Note machine, PyTorch and commit once for each that a run starts on."""
    cuda = torch.cuda.is_available()
    commit = (
        subprocess.run(
            [
                'git',
                '-C',
                ROOT,
                'describe',
                '--always',
                '--dirty',
                '--abbrev=40',
            ],
            capture_output=True,
            text=True,
            check=False,
        ).stdout.strip()
        or None
    )
    machine = (
        f'{platform.machine()} with '
        f'{torch.backends.cpu.get_cpu_capability()}, '
        f'{os.cpu_count()} CPUs'
    )
    now = dict(
        machine=torch.cuda.get_device_name() if cuda else machine,
        torch=torch.__version__,
        commit=commit,
    )
    starts = read_starts(folder)
    if now not in starts:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / 'starts.json', json.dumps([*starts, now]))


def read_starts(folder: Path) -> list[dict]:
    """What was noted."""
    path = folder / 'starts.json'
    return json.loads(path.read_text()) if path.is_file() else []


def collect(
    cell: Cell,
    folder: Path,
    metrics: dict[str, float],
    epochs: int,
    tests_on_validation: bool,
) -> dict[str, Any]:
    """A row's numbers, from the logs of a training and the test's metrics.

    A validation that an interruption cut off is missing from the curves, but
    for the last one where it is the test.
    """
    logged = {'loss': logged_losses(folder)} | {
        metric.key: logged_metric(folder, metric.key, finite_only=True)
        for metric in METRICS.values()
    }
    if tests_on_validation:
        for key in metrics.keys() & logged.keys():
            logged[key].setdefault(epochs, metrics[key])
    curves = {
        key: [
            (step, float(f'{values[step]:.6g}'))
            for step in sorted(values.keys() - {TEST})
        ]
        for key, values in logged.items()
        if values
    }
    key = METRICS[cell.metrics[0]].key
    best = None
    if tests_on_validation and key in curves:
        epoch, _ = max(curves[key], key=lambda point: point[1])
        best = dict(
            epoch=epoch,
            metrics={
                name: dict(curve)[epoch]
                for name, curve in curves.items()
                if name != 'loss' and epoch in dict(curve)
            },
        )
    record = folder / 'test' / 'stiffness' / 'stiffness_test.npz'
    return dict(
        last=dict(epoch=epochs, metrics=metrics),
        best=best,
        curves=curves,
        stiffness=summarise_stiffness(record) if record.is_file() else None,
        starts=read_starts(folder),
    )


def write_row(path: Path, row: dict[str, Any]) -> None:
    """Write a row, a line a key, wholly or not at all."""
    lines = [
        f'  {json.dumps(key)}: {json.dumps(value, allow_nan=False)}'
        for key, value in row.items()
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, '{\n' + ',\n'.join(lines) + '\n}\n')
