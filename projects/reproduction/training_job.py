"""One config with one seed, from wherever it stands to its result."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mmstepnet.files import write_whole
from mmstepnet.jobs.checkpoint import read_checkpoint
from mmstepnet.jobs.interim_checkpoint_hook import INTERIM

from .launch import SEED, LaunchSettings, call, locked
from .metafile import Cell
from .metric_log import (
    TEST,
    logged_losses,
    logged_metric,
    logged_seconds,
)
from .metrics import METRICS
from .provenance import provenance
from .results import (
    load_result,
    read_json,
    result_path,
    save_result,
)
from .schedule import BATCH_SIZE, Schedule
from .stiffness import summarise_stiffness, summarise_validations

CHECKPOINT = re.compile(r'epoch_(\d+)\.pth')
# With one, mmengine deletes the old checkpoint before the new one is written.
KEEP = 'default_hooks.checkpoint.max_keep_ckpts=2'
Say = Callable[[str], None]


@dataclass(frozen=True)
class TrainingJob:
    """One config with one seed: its training, its test and its result."""

    cell: Cell
    seed: int
    launch: LaunchSettings

    def __str__(self) -> str:
        return f'{self.cell.name}, seed {self.seed}'

    @property
    def folder(self) -> Path:
        """Its work directory."""
        return self.launch.work_dir / self.cell.name / f'seed_{self.seed}'

    @property
    def result(self) -> Path:
        """File of its result."""
        return result_path(self.launch.results, self.cell.name, self.seed)

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
        if options != list(self.launch.cfg_options):
            raise ValueError(
                f'{place} comes from --cfg-options '
                f'{" ".join(options) or "(none)"}, not from '
                f'{" ".join(self.launch.cfg_options) or "(none)"}; give '
                'another --results and --work-dir, or remove it')

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
        return Schedule.read(self.cell.config, self.launch.cfg_options,
                             self.launch.gpus)

    def train_command(self, schedule: Schedule,
                      checkpoint: Path | None) -> list[str]:
        """Command that trains, from a checkpoint where there is one."""
        resume = [] if checkpoint is None else ['--resume', str(checkpoint)]
        size = ([] if schedule.batch_size is None else
                [f'{BATCH_SIZE}={schedule.batch_size}'])
        return self.launch.command(
            'train', self.cell.config, '--work-dir', str(self.folder), *resume,
            '--cfg-options', KEEP, *size, *self.launch.cfg_options,
            f'{SEED}={self.seed}')

    def test_command(self, checkpoint: Path) -> list[str]:
        """Command that tests a checkpoint."""
        return self.launch.command(
            'test', self.cell.config, str(checkpoint), '--work-dir',
            str(self.test_dir), '--out', str(self.test_metrics),
            '--cfg-options', *self.launch.cfg_options, f'{SEED}={self.seed}')

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
            bool: False where another process has the job under way.

        Raises:
            RuntimeError: A command failed.
            ValueError: What stands in the folders does not fit, or a metric
                is no finite number.
        """
        with locked(self.folder / '.lock') as lock:
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
                call(
                    self.train_command(schedule, interim
                                       or (point and point[1])), lock,
                    self.launch.root)
                point = self.last_checkpoint(schedule)
            if point is None or point[0] < schedule.max_epochs:
                raise RuntimeError(
                    f'{self}: training ended without a checkpoint of epoch '
                    f'{schedule.max_epochs} in {self.folder}')
            say(f'{self}: testing {point[1].name}')
            call(self.test_command(point[1]), lock, self.launch.root)
            save_result(self.result, self._collect(schedule))
            return True

    def _collect(self, schedule: Schedule) -> dict:
        metrics = read_json(self.test_metrics)
        return {
            'config': self.cell.name,
            'seed': self.seed,
            'cfg_options': list(self.launch.cfg_options),
            'last': {'epoch': schedule.max_epochs, 'metrics': metrics},
            'best': self._best() if schedule.validates_on_test else None,
            'curves': self._curves(),
            'stiffness': self._stiffness(),
            'validations': summarise_validations(self.folder),
            'launcher': self.launch.launcher,
            'gpus': self.launch.gpus,
            'seconds': round(logged_seconds(self.folder)),
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
        starts, now = self._starts(), provenance(self.launch.root)
        if now not in starts:
            write_whole(self._starts_file, json.dumps([*starts, now]))
        write_whole(self._options_file,
                    json.dumps(list(self.launch.cfg_options)))

    def _stiffness(self) -> dict | None:
        """What a StiffnessHook measured in the test, if the config has one."""
        record = self.test_dir / 'stiffness' / 'stiffness_test.npz'
        return summarise_stiffness(record) if record.is_file() else None

    def _curves(self) -> dict[str, list[tuple[int, float]]]:
        curves = {'loss': logged_losses(self.folder), **self._logged()}
        return {
            key: [(step, float(f'{values[step]:.6g}'))
                  for step in sorted(values.keys() - {TEST})]
            for key, values in curves.items() if values
        }

    def _best(self) -> dict:
        values = logged_metric(self.folder, self.key)
        if not values:
            raise ValueError(
                f'{self}: no log in {self.folder} has {self.key!r}, of which '
                'the best epoch is wanted; remove the folder to train again')
        best = max(values, key=values.get)
        return {
            'epoch': best,
            'metrics': {k: v[best] for k, v in self._logged().items()
                        if best in v}
        }

    def _logged(self) -> dict[str, dict[int | str, float]]:
        """Every metric's finite values by epoch."""
        return {
            metric.key: logged_metric(
                self.folder, metric.key, finite_only=True)
            for metric in METRICS.values()
        }
