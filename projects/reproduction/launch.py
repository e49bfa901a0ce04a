"""How training jobs are started: commands, locks and processes."""

import fcntl
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

SEED = 'randomness.seed'


@dataclass(frozen=True)
class LaunchSettings:
    """How jobs are started and where their files go.

    Attributes:
        root (Path): Folder of ``tools/``.
        work_dir (Path): Gets ``CONFIG/seed_N/``, logs and checkpoints.
        results (Path): Gets ``CONFIG/seed_N.json``.
        cfg_options (tuple[str, ...]): ``KEY=VALUE`` for every job.
        launcher (str): ``'none'``, ``'pytorch'`` or ``'slurm'``.
        gpus (int): Processes of each under the last two.
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
            raise ValueError(f'{SEED} is set by the seed of each job; leave '
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
            # dist_test.sh takes the checkpoint first, then the number.
            place = 1 if tool == 'test' else 0
            return ['bash', str(tools / f'dist_{tool}.sh'), str(config),
                    *args[:place], str(self.gpus), *args[place:]]
        if self.launcher == 'slurm':
            return ['env', f'GPUS={self.gpus}', 'bash',
                    str(tools / f'slurm_{tool}.sh'), self.partition,
                    config.stem, str(config), *args]
        return [sys.executable, str(tools / f'{tool}.py'), str(config), *args]


@contextmanager
def locked(path: Path) -> Iterator[IO | None]:
    """Hold a lock that ends with the processes that hold it; None if taken."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, 'w') as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
        else:
            yield file


def call(command: list[str], lock: IO, root: Path) -> None:
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
