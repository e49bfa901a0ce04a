"""The stages of quickstart.sh, with one line that says how far they are.

It makes the environment that all else needs, so this file alone runs without
any package.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

OUT = Path('work_dirs/quickstart')
ATTENTIONS = ('stepnet', 'se', 'plain')
DETECTOR = 'faster_rcnn_r18_stepnet_digits'
DETECTION_DATA = 'data/digits_detection'
SHOWN_EVERY = 30
"""Seconds between two lines where the output is no terminal."""


class Stage(NamedTuple):
    """What is done in one go.

    Attributes:
        title (str): What it does.
        seconds (float): How long it takes on two cores with nothing else to
            do.
        commands (list[list[str]]): Run one after the other.
        result (Path, optional): There once the stage is over, which is then
            left out by the next call. None runs it each time.
        shows (Path, optional): Where to look at what came out.
    """

    title: str
    seconds: float
    commands: list[list[str]]
    result: Path | None = None
    shows: Path | None = None


def classifier(attention: str) -> str:
    """Name of a network's config, without its folder."""
    return f'resnet20_{attention}_digits'


def train_and_test(title: str, name: str, epochs: int,
                   seconds: float) -> Stage:
    """Train a config of the digits, and test what came out."""
    config, work_dir = f'configs/digits/{name}.py', OUT / name
    result = work_dir / 'metrics.json'
    return Stage(title, seconds, [
        ['python', 'tools/train.py', config, '--work-dir', str(work_dir),
         '--resume'],
        ['python', 'tools/test.py', config,
         str(work_dir / f'epoch_{epochs}.pth'), '--work-dir',
         str(work_dir / 'test'), '--out', str(result)],
    ], result)


def report(title: str, runs: list[Path], out: Path) -> Stage:
    """Draw the page that compares the stiffness of runs."""
    return Stage(title, 10, [
        ['python', 'tools/analysis_tools/stiffness_report.py',
         *map(str, runs), '--out', str(out)]
    ], shows=out / 'stiffness_report.html')


def plan() -> tuple[list[Stage], list[Stage]]:
    """The stages before mmcv's ops have to be there, and those after."""
    setup = ['bash', 'tools/setup_env.sh']
    runs = [OUT / classifier(attention) for attention in ATTENTIONS]
    pictures = ['python', 'tools/quickstart_pictures.py', str(OUT)]
    first = [
        train_and_test('StepNet learns to read digits', runs[0].name, 20, 210),
        Stage('ten digits, read by it', 10, [[*pictures, 'classify']],
              shows=OUT / 'classification'),
        report('its stiffness', runs[:1], OUT / 'first_stiffness_report'),
        train_and_test('SE learns to read digits', runs[1].name, 20, 210),
        train_and_test('a plain network does, too', runs[2].name, 20, 190),
        report('stiffness of the three', runs, OUT / 'stiffness_report'),
    ]
    then = [
        Stage("mmcv's compiled ops", 30, [[*setup, 'ops']]),
        Stage('pictures to find digits in', 15, [
            ['python', 'tools/dataset_converters/compose_digits.py', '--out',
             DETECTION_DATA]]),
        train_and_test('a detector with StepNet learns to find them', DETECTOR,
                       3, 240),
        Stage('digits that it finds', 15, [[*pictures, 'detect']],
              shows=OUT / 'detection'),
    ]
    return first, then


class Progress:
    """One line: what runs, for how long, and about how long all will take.

    Args:
        stages (list[Stage]): All that is to be run.

    Attributes:
        beside (tuple, optional): A stage that cannot begin before what runs
            beside all others is over, when that began, and its log.
    """

    def __init__(self, stages: list[Stage]):
        self.stages = stages
        self.number = 0
        self.beside: tuple[Stage, float, Path] | None = None
        self.start = self.stage_start = self.shown = time.monotonic()
        self.took = self.expected = 0.

    def begin(self, stage: Stage) -> None:
        """Go on to a stage."""
        self.number += 1
        self.stage = stage
        self.stage_start = time.monotonic()
        self.shown = self.stage_start - SHOWN_EVERY

    def left(self, log: Path) -> float:
        """Seconds to the end of all, at the pace that was kept so far."""
        now = time.monotonic()
        pace = self.took / self.expected if self.expected else 1.
        left = seconds_told(log, now - self.stage_start)
        if left is None:
            left = max(pace * self.stage.seconds - (now - self.stage_start), 0)
        for stage in self.stages[self.number:]:
            if self.beside and stage is self.beside[0]:
                _, start, other_log = self.beside
                left = max(left, seconds_told(other_log, now - start) or 0)
            left += pace * stage.seconds
        return left

    def show(self, log: Path) -> None:
        """Write the line, or write over it."""
        now = time.monotonic()
        if not sys.stdout.isatty() and now - self.shown < SHOWN_EVERY:
            return
        self.shown = now
        self.write(f'[{self.number}/{len(self.stages)}] {self.stage.title}: '
                   f'{minutes(now - self.start)} gone, about '
                   f'{minutes(self.left(log))} left')

    def end(self) -> None:
        """Say how long the stage took, and where to look."""
        took = time.monotonic() - self.stage_start
        if took > self.stage.seconds / 10:  # else it was there already
            self.took += took
            self.expected += self.stage.seconds
        self.write(f'[{self.number}/{len(self.stages)}] {self.stage.title}: '
                   f'done in {minutes(took)}', '\n')
        if self.stage.result:
            values = json.loads(self.stage.result.read_text())
            print('     ', ', '.join(f'{name} {value:.3f}'
                                     for name, value in values.items()))
        if self.stage.shows:
            print(f'      look at {self.stage.shows.resolve()}', flush=True)

    @staticmethod
    def write(line: str, end: str = '') -> None:
        """Write over the last line of a terminal; else below it."""
        if sys.stdout.isatty():
            print(f'\r\033[K{line}', end=end, flush=True)
        else:
            print(line, flush=True)


def minutes(seconds: float) -> str:
    """Say a time as people do."""
    if seconds < 60:
        return f'{seconds:.0f} s'
    return f'{seconds / 60:.0f} min'


def seconds_told(log: Path, elapsed: float) -> float | None:
    """What a command's own output says of the time that it still needs.

    mmengine's training writes ``eta: 0:01:20``, the build of mmcv the number
    of its file and of all, ``[12/78]``.
    """
    end = log.read_text(errors='replace')[-4000:] if log.is_file() else ''
    if told := re.findall(r'Epoch\(train\).* eta: ([\d:]+)', end):
        hours, mins, secs = map(int, told[-1].split(':'))
        return 3600 * hours + 60 * mins + secs
    if told := re.findall(r'mmcv: file (\d+)/(\d+)', end):
        done, all_of_it = map(int, told[-1])
        return elapsed * (all_of_it / done - 1)
    return None


class Jobs:
    """Starts processes, and ends them with this one.

    Args:
        env (dict[str, str]): Their environment.
    """

    def __init__(self, env: dict[str, str]):
        self.env = env
        self.running: list[subprocess.Popen] = []

    def start(self, command: list[str], log: Path,
              **env: str) -> subprocess.Popen:
        """Start a command whose output goes to a file."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open('wb') as file:
            job = subprocess.Popen(
                command, stdout=file, stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL, start_new_session=True,
                env={**self.env, **env})
        self.running.append(job)
        return job

    def wait(self, job: subprocess.Popen, log: Path,
             progress: Progress) -> None:
        """Show progress until a command is over.

        Raises:
            SystemExit: It has failed.
        """
        while job.poll() is None:
            progress.show(log)
            time.sleep(.5)
        if job.returncode:
            lines = log.read_text(errors='replace').splitlines()[-20:]
            raise SystemExit('\n'.join([
                '', *lines, f'failed: {" ".join(job.args)}; its whole output '
                f'is in {log}, and the same command goes on from here']))

    def stop(self) -> None:
        """End what runs still, with its children."""
        for job in self.running:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGTERM)
                job.wait()


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('venv', type=Path, help='folder of the environment')
    return parser.parse_args()


def run(jobs: Jobs) -> None:
    """All stages, mmcv's wheel made beside the first of them."""
    first, then = plan()
    basis = Stage('environment', 120, [['bash', 'tools/setup_env.sh',
                                        'basis']])
    todo = [stage for stage in (*first, *then)
            if stage.result is None or not stage.result.exists()]
    progress = Progress([basis, *todo])
    wheel, wheel_log = None, OUT / 'logs' / 'wheel.log'
    for stage in progress.stages:
        progress.begin(stage)
        if wheel is not None and stage is then[0]:
            jobs.wait(wheel, wheel_log, progress)
            progress.beside = None
        # Beside a compiler, a training has one core.
        busy = wheel is not None and wheel.poll() is None
        threads = dict(OMP_NUM_THREADS='1') if busy else {}
        for i, command in enumerate(stage.commands):
            log = OUT / 'logs' / f'{progress.number}_{i}.log'
            jobs.wait(jobs.start(command, log, **threads), log, progress)
        progress.end()
        if stage is basis:
            wheel = jobs.start(
                ['nice', 'bash', 'tools/setup_env.sh', 'wheel'], wheel_log)
            progress.beside = then[0], time.monotonic(), wheel_log


def main() -> None:
    venv = parse_args().venv
    path = f'{venv.resolve() / "bin"}{os.pathsep}{os.environ["PATH"]}'
    # Threads that wait for each other would spin, and on a busy machine use
    # up what the others need to end.
    jobs = Jobs(dict(os.environ, PATH=path, OMP_WAIT_POLICY='PASSIVE'))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        run(jobs)
    except KeyboardInterrupt:
        raise SystemExit('\ninterrupted; the same command goes on from '
                         'here') from None
    finally:
        jobs.stop()


if __name__ == '__main__':
    main()
