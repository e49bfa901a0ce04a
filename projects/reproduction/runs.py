"""Training and testing the configs of a table, one seed after the other.

A run is one config with one seed. What is done is skipped, what was
interrupted goes on; several processes may share the work, for each run is
locked while it is under way.
"""

import fcntl
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import torch
from mmengine.config import Config

from mmstepnet.engine.checkpoint import read_checkpoint
from mmstepnet.engine.hooks.interim_checkpoint_hook import INTERIM
from mmstepnet.engine.job import KeyValueAction
from mmstepnet.engine.metric_log import (
    TEST,
    logged_losses,
    logged_metric,
)
from mmstepnet.version import __version__

from .metafile import Cell
from .metrics import METRICS
from .results import (
    load_result,
    read_json,
    result_path,
    save_result,
    write_whole,
)
from .stiffness import summarise_stiffness

CHECKPOINT = re.compile(r'epoch_(\d+)\.pth')
SEED = 'randomness.seed'
BATCH_SIZE = 'train_dataloader.batch_size'
CODE = ('mmstepnet', 'configs', 'tools', ':(glob)projects/**/*.py')
# With one, mmengine deletes the old checkpoint before the new one is written.
KEEP = 'default_hooks.checkpoint.max_keep_ckpts=2'
Say = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """How runs are started and where their files go.

    Attributes:
        root (Path): Folder of ``tools/``.
        work_dir (Path): Gets ``CONFIG/seed_N/``, logs and checkpoints.
        results (Path): Gets ``CONFIG/seed_N.json``.
        cfg_options (tuple[str, ...]): ``KEY=VALUE`` for every run.
        launcher (str): ``'none'``, ``'pytorch'`` or ``'slurm'``.
        gpus (int): Processes of a job under the last two.
        partition (str, optional): Slurm's partition.
    """

    root: Path
    work_dir: Path
    results: Path
    cfg_options: tuple[str, ...] = ()
    launcher: str = 'none'
    gpus: int = 1
    partition: str | None = None

    def __post_init__(self):
        if any(o.partition('=')[0] == SEED for o in self.cfg_options):
            raise ValueError(f'{SEED} is set by the seed of each run; leave '
                             'it out of --cfg-options and use --seeds')
        if self.launcher == 'slurm' and not self.partition:
            raise ValueError('the launcher slurm needs --partition')
        if self.launcher == 'none' and self.gpus > 1:
            raise ValueError(f'{self.gpus} GPUs need a launcher: add '
                             '--launcher pytorch or slurm')

    def command(self, tool: str, config: Path, *args: str) -> list[str]:
        """Command that starts ``train`` or ``test`` on a config."""
        tools = self.root / 'tools'
        if self.launcher == 'pytorch':
            return ['bash', str(tools / f'dist_{tool}.sh'), str(config),
                    *self._processes(tool, args)]
        if self.launcher == 'slurm':
            return ['env', f'GPUS={self.gpus}', 'bash',
                    str(tools / f'slurm_{tool}.sh'), self.partition,
                    config.stem, str(config), *args]
        return [sys.executable, str(tools / f'{tool}.py'), str(config), *args]

    def _processes(self, tool: str, args: Sequence[str]) -> list[str]:
        """``dist_test.sh`` takes the checkpoint first, then the number."""
        place = 1 if tool == 'test' else 0
        return [*args[:place], str(self.gpus), *args[place:]]


@dataclass(frozen=True)
class Schedule:
    """What a run must know of its config."""

    max_epochs: int
    val_interval: int
    val_begin: int
    validates_on_test: bool
    batch_size: int | None = None
    """Of a process, where the config's would not give a step the images that
    its table is about."""

    @classmethod
    def read(cls, config: Path, cfg_options: Sequence[str],
             gpus: int = 1) -> 'Schedule':
        """Read it from a config.

        Raises:
            ValueError: The training loop does not count epochs, or the images
                of a step cannot be shared by the GPUs.
        """
        cfg = Config.fromfile(config)
        if cfg_options:
            parser = ArgumentParser()
            parser.add_argument(
                '--cfg-options', nargs='+', action=KeyValueAction)
            cfg.merge_from_dict(parser.parse_args(
                ['--cfg-options', *cfg_options]).cfg_options)
        loop = cfg.train_cfg
        if 'max_epochs' not in loop:
            raise ValueError(f'{config}: train_cfg has no max_epochs; tables '
                             'compare epochs')
        if not isinstance(loop.max_epochs, int):
            raise ValueError(f'{config}: train_cfg.max_epochs must be an '
                             f'integer, got {loop.max_epochs!r}')
        return cls(loop.max_epochs, loop.get('val_interval', 1),
                   loop.get('val_begin', 1),
                   cfg.val_dataloader.dataset == cfg.test_dataloader.dataset,
                   _batch_size(config, cfg, cfg_options, gpus))

    def validates(self, epoch: int) -> bool:
        """Whether the training loop validates after this epoch."""
        return epoch >= self.val_begin and (epoch % self.val_interval == 0
                                            or epoch == self.max_epochs)


def _batch_size(config: Path, cfg: Config, cfg_options: Sequence[str],
                gpus: int) -> int | None:
    """Share the images of a step among the GPUs, unless told otherwise."""
    scale = cfg.get('auto_scale_lr', {})
    base = scale.get('base_batch_size')
    chosen = any(o.startswith(f'{BATCH_SIZE}=') for o in cfg_options)
    if base is None or chosen or scale.get('enable'):
        return None
    if base % gpus:
        raise ValueError(
            f'{config}: the {base} images of a step cannot be shared by '
            f'{gpus} GPUs; take a number that divides {base}, or '
            f'--cfg-options {BATCH_SIZE}=N auto_scale_lr.enable=True')
    size = base // gpus
    return None if size == cfg.train_dataloader.batch_size else size


@dataclass(frozen=True)
class Run:
    """One config with one seed."""

    cell: Cell
    seed: int
    plan: Plan

    def __str__(self) -> str:
        return f'{self.cell.name}, seed {self.seed}'

    @property
    def folder(self) -> Path:
        """Its work directory."""
        return self.plan.work_dir / self.cell.name / f'seed_{self.seed}'

    @property
    def result(self) -> Path:
        """File of its result."""
        return result_path(self.plan.results, self.cell.name, self.seed)

    @property
    def key(self) -> str:
        """Host's name of the metric that chooses the best epoch."""
        return METRICS[self.cell.metrics[0]].key

    def is_done(self) -> bool:
        """Whether there is a result.

        Raises:
            ValueError: There is one of other ``--cfg-options``.
        """
        if not self.result.is_file():
            return False
        self._check_options(self.result,
                            load_result(self.result)['cfg_options'])
        return True

    def check_folder(self) -> None:
        """Refuse to go on with a training of other ``--cfg-options``.

        Raises:
            ValueError: The work directory has one.
        """
        if self._options_file.is_file():
            self._check_options(self.folder, read_json(self._options_file))

    def _check_options(self, place: Path, options: list[str]) -> None:
        if options != list(self.plan.cfg_options):
            raise ValueError(
                f'{place} comes from --cfg-options '
                f'{" ".join(options) or "(none)"}, not from '
                f'{" ".join(self.plan.cfg_options) or "(none)"}; give another '
                '--results and --work-dir, or remove it')

    def last_checkpoint(self, schedule: Schedule) -> tuple[int, Path] | None:
        """The newest checkpoint that training can go on from.

        One that is cut off does not count, nor one whose validation was due
        and is not in the logs: mmengine saves first, and a resumed run would
        leave that validation out.

        Raises:
            ValueError: One is of an epoch that the schedule does not have.
        """
        if not self.folder.is_dir():
            return None
        found = {
            int(match[1]): path
            for path in self.folder.iterdir()
            if (match := CHECKPOINT.fullmatch(path.name))
        }
        if (last := max(found, default=0)) > schedule.max_epochs:
            raise ValueError(
                f'{found[last]} is beyond the {schedule.max_epochs} epochs of '
                f'{self.cell.config}; give another --work-dir, or remove '
                f'{self.folder}')
        validated = logged_metric(self.folder, self.key)
        for epoch in sorted(found, reverse=True):
            if schedule.validates(epoch) and epoch not in validated:
                continue
            try:
                read_checkpoint(str(found[epoch]))
            except ValueError:
                continue
            return epoch, found[epoch]
        return None

    def interim_checkpoint(self, done: int) -> Path | None:
        """One from within an epoch, where it is further than ``done``.

        Args:
            done (int): Epochs that :meth:`last_checkpoint` has.
        """
        path = self.folder / INTERIM
        if not path.is_file():
            return None
        # Written whole: one that cannot be read is worth an error.
        meta = read_checkpoint(str(path))['meta']
        return path if meta['epoch'] >= done else None

    def schedule(self) -> Schedule:
        """Its schedule."""
        return Schedule.read(self.cell.config, self.plan.cfg_options,
                             self.plan.gpus)

    def train_command(self, schedule: Schedule,
                      checkpoint: Path | None) -> list[str]:
        """Command that trains, from a checkpoint where there is one."""
        resume = [] if checkpoint is None else ['--resume', str(checkpoint)]
        size = ([] if schedule.batch_size is None else
                [f'{BATCH_SIZE}={schedule.batch_size}'])
        return self.plan.command(
            'train', self.cell.config, '--work-dir', str(self.folder), *resume,
            '--cfg-options', KEEP, *size, *self.plan.cfg_options,
            f'{SEED}={self.seed}')

    def test_command(self, checkpoint: Path) -> list[str]:
        """Command that tests a checkpoint."""
        return self.plan.command(
            'test', self.cell.config, str(checkpoint), '--work-dir',
            str(self.test_dir), '--out', str(self.test_metrics),
            '--cfg-options', *self.plan.cfg_options, f'{SEED}={self.seed}')

    @property
    def test_dir(self) -> Path:
        """Work directory of its test."""
        return self.folder / 'test'

    @property
    def test_metrics(self) -> Path:
        """File that the test leaves its metrics in."""
        return self.folder / 'test_metrics.json'

    def execute(self, say: Say) -> bool:
        """Train, test and save the result, from wherever it stands.

        Returns:
            bool: False where another process has the run under way.

        Raises:
            RuntimeError: A command failed.
            ValueError: What stands in the folders does not fit, or a metric
                is no finite number.
        """
        with _locked(self.folder / '.lock') as lock:
            if lock is None:
                say(f'{self}: under way in another process')
                return False
            if self.is_done():
                return True
            self.check_folder()
            schedule = self.schedule()
            self._note_start()
            point = self.last_checkpoint(schedule)
            if point is None or point[0] < schedule.max_epochs:
                done = 0 if point is None else point[0]
                interim = self.interim_checkpoint(done)
                say(f'{self}: {done} of {schedule.max_epochs} epochs are '
                    'trained' + (', the next in part' if interim else ''))
                _call(
                    self.train_command(schedule, interim
                                       or (point and point[1])), lock,
                    self.plan.root)
                point = self.last_checkpoint(schedule)
            if point is None or point[0] < schedule.max_epochs:
                raise RuntimeError(
                    f'{self}: training ended without a checkpoint of epoch '
                    f'{schedule.max_epochs} in {self.folder}')
            say(f'{self}: testing {point[1].name}')
            _call(self.test_command(point[1]), lock, self.plan.root)
            save_result(self.result, self._collect(schedule))
            return True

    def _collect(self, schedule: Schedule) -> dict:
        metrics = read_json(self.test_metrics)
        return {
            'config': self.cell.name,
            'seed': self.seed,
            'cfg_options': list(self.plan.cfg_options),
            'last': {'epoch': schedule.max_epochs, 'metrics': metrics},
            'best': self._best() if schedule.validates_on_test else None,
            'curves': self._curves(),
            'stiffness': self._stiffness(),
            'launcher': self.plan.launcher,
            'gpus': self.plan.gpus,
            'starts': self._starts(),
        }

    @property
    def _starts_file(self) -> Path:
        return self.folder / 'starts.json'

    @property
    def _options_file(self) -> Path:
        return self.folder / 'cfg_options.json'

    def _starts(self) -> list[dict]:
        if not self._starts_file.is_file():
            return []
        return read_json(self._starts_file)

    def _note_start(self) -> None:
        """The code may be another when the run ends, or goes on."""
        starts, now = self._starts(), provenance(self.plan.root)
        if now not in starts:
            write_whole(self._starts_file, json.dumps([*starts, now]))
        write_whole(self._options_file,
                    json.dumps(list(self.plan.cfg_options)))

    def _stiffness(self) -> dict | None:
        """What a StiffnessHook measured in the test, if the config has one."""
        record = self.test_dir / 'stiffness' / 'stiffness_test.npz'
        return summarise_stiffness(record) if record.is_file() else None

    def _curves(self) -> dict[str, list[tuple[int, float]]]:
        curves = {'loss': logged_losses(self.folder)}
        for metric in METRICS.values():
            curves[metric.key] = logged_metric(
                self.folder, metric.key, finite_only=True)
        return {
            key: [(step, float(f'{values[step]:.6g}'))
                  for step in sorted(values.keys() - {TEST})]
            for key, values in curves.items() if values
        }

    def _best(self) -> dict:
        values = logged_metric(self.folder, self.key)
        best = max(values, key=values.get)
        logged = {
            metric.key: logged_metric(
                self.folder, metric.key, finite_only=True)
            for metric in METRICS.values()
        }
        return {
            'epoch': best,
            'metrics': {k: v[best] for k, v in logged.items() if best in v}
        }


def run_cells(cells: Sequence[Cell], seeds: int, plan: Plan, *,
              dry_run: bool, say: Say) -> list[Run]:
    """Run every cell with seeds 0 to ``seeds - 1``, seed by seed.

    Args:
        cells (Sequence[Cell]): Cells; those without a config are left out.
        seeds (int): Number of seeds.
        plan (Plan): How and where.
        dry_run (bool): Say what would be run, and run nothing.
        say (Callable): Is told the progress, line by line.

    Returns:
        list[Run]: Runs that have no result yet: under way in other
        processes, or all that are left of a dry run.

    Raises:
        ValueError: No cell has a config, or a result does not fit.
        RuntimeError: Runs failed; raised after the others.
    """
    for cell in cells:
        if cell.config is None:
            say(f'{cell.row} ({cell.column}): cannot be run, there is no '
                'config')
    configs = {cell.name: cell for cell in cells if cell.config is not None}
    if not configs:
        raise ValueError('none of the chosen rows has a config')
    runs = [Run(c, s, plan) for s in range(seeds) for c in configs.values()]
    pending = [run for run in runs if not run.is_done()]
    say(f'{len(runs) - len(pending)} of {len(runs)} runs are done')
    for config in dict.fromkeys(run.cell.config for run in pending):
        # An error of the last one is due before the first is trained.
        Schedule.read(config, plan.cfg_options, plan.gpus)
    if dry_run:
        for run in pending:
            _say_commands(run, say)
        return pending
    left, failed = [], []
    for number, run in enumerate(pending, len(runs) - len(pending) + 1):
        say(f'run {number} of {len(runs)}: {run}')
        try:
            if not run.execute(say):
                left.append(run)
        except (RuntimeError, ValueError, OSError) as error:
            failed.append(f'{run}: {error}')
            say(f'failed: {failed[-1]}')
    if failed:
        raise RuntimeError('\n'.join(
            [f'{len(failed)} of {len(runs)} runs failed:', *failed]))
    return left


def _say_commands(run: Run, say: Say) -> None:
    run.check_folder()
    schedule = run.schedule()
    point = run.last_checkpoint(schedule)
    epoch, checkpoint = point or (0, None)
    say(f'{run}: {epoch} of {schedule.max_epochs} epochs are trained')
    if epoch < schedule.max_epochs:
        checkpoint = run.interim_checkpoint(epoch) or checkpoint
        say('  ' + shlex.join(run.train_command(schedule, checkpoint)))
        checkpoint = run.folder / f'epoch_{schedule.max_epochs}.pth'
    say('  ' + shlex.join(run.test_command(checkpoint)))


@contextmanager
def _locked(path: Path) -> Iterator[IO | None]:
    """Hold a lock that ends with the processes that hold it; None if taken."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, 'w') as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
        else:
            yield file


def _call(command: list[str], lock: IO, root: Path) -> None:
    """Run a command; it shares the lock, should it outlive this process.

    The projects' configs import from the checkout.
    """
    path = os.pathsep.join(
        filter(None, (str(root), os.environ.get('PYTHONPATH'))))
    with subprocess.Popen(
            command,
            pass_fds=(lock.fileno(), ),
            env={**os.environ, 'PYTHON': sys.executable,
                 'PYTHONPATH': path}) as process:
        try:
            code = process.wait()
        except BaseException:
            process.terminate()
            raise
    if code:
        raise RuntimeError(f'exit status {code} of: {shlex.join(command)}')


def provenance(root: Path) -> dict[str, str | None]:
    """What a result comes from, besides its config and seed.

    Args:
        root (Path): The checkout.

    Returns:
        dict: ``machine``, ``torch``, ``mmstepnet`` and ``commit``, the last
        None where ``root`` is no repository, and with ``-dirty`` where code
        or configs differ from it.
    """
    cuda = torch.cuda.is_available()
    return {
        'machine': (torch.cuda.get_device_name() if cuda else
                    f'{platform.machine()}, {os.cpu_count()} CPUs'),
        'torch': torch.__version__,
        'mmstepnet': __version__,
        'commit': _commit(root),
    }


def _commit(root: Path) -> str | None:
    def git(*args: str) -> str:
        return subprocess.run(['git', '-C', str(root), *args],
                              capture_output=True, text=True,
                              check=False).stdout.strip()
    if shutil.which('git') is None:
        return None
    # A copy inside somebody's repository is none of its commits.
    if git('rev-parse', '--show-toplevel') != str(root.resolve()):
        return None
    changed = git('status', '--porcelain', '--', *CODE)
    return git('rev-parse', 'HEAD') + ('-dirty' if changed else '')
