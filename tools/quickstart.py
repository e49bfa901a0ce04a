"""The stages of quickstart.sh, with one line that says how far they are.

It makes the environment that all else needs, so this file alone runs without
any package.
"""

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

OUT = Path('work_dirs/quickstart')
DETECTION_DATA = 'data/digits_detection'
SHOWN_EVERY = 30
"""Seconds between two lines where the output is no terminal."""

CLASSIFIERS = {
    'train_cfg.max_epochs': 7,
    'param_scheduler.1.end': 7,
    'param_scheduler.1.T_max': 6,
    # The digits are of 8 px; a quarter of the config's pixels shows them.
    'train_dataloader.dataset.pipeline.0.scale': 16,
    'train_dataloader.dataset.pipeline.1.crop_size': 16,
    'train_dataloader.dataset.pipeline.1.padding': 2,
    'val_dataloader.dataset.pipeline.0.scale': 16,
    'test_dataloader.dataset.pipeline.0.scale': 16,
}
DETECTOR = {
    'train_cfg.max_epochs': 2,
    # The test that follows says how good it is.
    'train_cfg.val_begin': 3,
    'train_dataloader.batch_size': 4,
    'param_scheduler.1.end': 500,
    'param_scheduler.1.T_max': 450,
    'model.backbone.base_channels': 32,
    'model.neck.in_channels': [32, 64, 128, 256],
    'model.train_cfg.rpn_proposal.nms_pre': 100,
    'model.train_cfg.rcnn.sampler.num': 16,
    'model.roi_head.bbox_roi_extractor.roi_layer.sampling_ratio': 1,
}
"""What makes a training short enough to wait for, at some cost."""


class Stage(NamedTuple):
    """What is done in one go.

    Attributes:
        title (str): What it does.
        seconds (float): How long it takes on two cores with nothing else to
            do.
        lanes (list[list[list[str]]]): Commands of a lane run one after the
            other, lanes beside each other.
        results (list[Path], optional): There once the stage is over, which is
            then left out by the next call. None runs it each time.
        shows (Path, optional): Where to look at what came out.
    """

    title: str
    seconds: float
    lanes: list[list[list[str]]]
    results: list[Path] | None = None
    shows: Path | None = None


def train_and_test(title: str, seconds: float, settings: dict[str, object],
                   *names: str) -> Stage:
    """Train configs of the digits for less time, and test what came out."""
    shorter = [f'{key}={value}' for key, value in settings.items()]
    epochs = settings['train_cfg.max_epochs']
    lanes, results = [], []
    for name in names:
        work_dir = OUT / name
        results.append(work_dir / 'metrics.json')
        lanes.append([
            ['python', 'tools/train.py', f'configs/digits/{name}.py',
             '--work-dir', str(work_dir), '--resume', '--cfg-options',
             *shorter],
            ['python', 'tools/test.py', str(work_dir / f'{name}.py'),
             str(work_dir / f'epoch_{epochs}.pth'), '--work-dir',
             str(work_dir / 'test'), '--out', str(results[-1])],
        ])
    return Stage(title, seconds, lanes, results)


def report(title: str, runs: list[str], out: Path) -> Stage:
    """Draw the page that compares the stiffness of runs."""
    return Stage(title, 10, [[
        ['python', '-m', 'mmstepnet', 'report',
         *(str(OUT / run) for run in runs), '--out', str(out)]
    ]], shows=out / 'stiffness_report.html')


def plan() -> tuple[list[Stage], list[Stage]]:
    """The stages before mmcv's ops have to be there, and those after."""
    runs = [f'resnet20_{name}_digits' for name in ('stepnet', 'se', 'plain')]
    pictures = ['python', 'tools/quickstart_pictures.py', str(OUT)]
    return [
        train_and_test('StepNet learns to read digits', 70, CLASSIFIERS,
                       runs[0]),
        Stage('ten digits, read by it', 10, [[[*pictures, 'classify']]],
              shows=OUT / 'classification'),
        report('its stiffness', runs[:1], OUT / 'first_stiffness_report'),
        train_and_test('SE and a plain network do, too', 80, CLASSIFIERS,
                       *runs[1:]),
        report('stiffness of the three', runs, OUT / 'stiffness_report'),
    ], [
        Stage("mmcv's compiled ops", 30,
              [[['bash', 'tools/setup_env.sh', 'ops']]]),
        Stage('pictures to find digits in', 15, [[
            ['python', 'tools/dataset_converters/compose_digits.py', '--out',
             DETECTION_DATA]]]),
        train_and_test(
            'a detector with StepNet learns to find them', 240, DETECTOR,
            'faster_rcnn_r18_stepnet_digits'),
        Stage('digits that it finds', 15, [[[*pictures, 'detect']]],
              shows=OUT / 'detection'),
    ]


def minutes(seconds: float) -> str:
    """Say a time as people do."""
    return (f'{seconds:.0f} s' if seconds < 60 else
            f'{seconds / 60:.0f} min')


class Jobs:
    """Runs commands, shows how far they are, and ends them with this process.

    Args:
        env (dict[str, str]): Their environment.
    """

    def __init__(self, env: dict[str, str]):
        self.env = env
        self.running: list[subprocess.Popen] = []
        self.start = self.shown = time.monotonic()

    def begin(self, command: list[str], log: Path,
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

    def wait(self, job: subprocess.Popen, log: Path, title: str,
             end: float) -> None:
        """Wait for a command that should let all be over at a time.

        Raises:
            SystemExit: It has failed.
        """
        while job.poll() is None:
            now = time.monotonic()
            if sys.stdout.isatty() or now - self.shown >= SHOWN_EVERY:
                self.shown = now
                write(f'{title}: {minutes(now - self.start)} gone, about '
                      f'{minutes(max(end - now, 0))} left')
            time.sleep(.5)
        if job.returncode:
            lines = log.read_text(errors='replace').splitlines()[-20:]
            raise SystemExit('\n'.join([
                '', *lines, f'failed: {job.args[-1]}; its whole output '
                f'is in {log}, and the same command goes on from here']))

    def stop(self) -> None:
        """End what runs still, with its children."""
        for job in self.running:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGTERM)
                job.wait()


def write(line: str, end: str = '') -> None:
    """Write over the last line of a terminal; else below it."""
    if sys.stdout.isatty():
        print(f'\r\033[K{line}', end=end, flush=True)
    else:
        print(line, flush=True)


def run(jobs: Jobs) -> None:
    """All stages, mmcv's wheel made beside the first of them."""
    first, then = plan()
    basis = Stage('environment', 120, [[['bash', 'tools/setup_env.sh',
                                         'basis']]])
    todo = [basis, *(stage for stage in (*first, *then)
                     if stage.results is None or not all(
                         result.exists() for result in stage.results))]
    wheel, wheel_log = None, OUT / 'logs' / 'wheel.log'
    took = expected = 1.  # of stages that were not there already
    for number, stage in enumerate(todo, 1):
        title = f'[{number}/{len(todo)}] {stage.title}'
        start = time.monotonic()
        end = start + took / expected * sum(
            later.seconds for later in todo[number - 1:])
        if wheel is not None and stage is then[0]:
            jobs.wait(wheel, wheel_log, title, end)
        # Beside a compiler or each other, trainings have one core each.
        busy = wheel is not None and wheel.poll() is None
        threads = dict(
            OMP_NUM_THREADS='1') if busy or len(stage.lanes) > 1 else {}
        logs = [OUT / 'logs' / f'{number}_{i}.log'
                for i in range(len(stage.lanes))]
        started = [
            jobs.begin(['sh', '-c', ' && '.join(map(shlex.join, lane))], log,
                       **threads) for lane, log in zip(stage.lanes, logs)]
        for job, log in zip(started, logs):
            jobs.wait(job, log, title, end)
        lasted = time.monotonic() - start
        if lasted > stage.seconds / 10:
            took, expected = took + lasted, expected + stage.seconds
        write(f'{title}: done in {minutes(lasted)}', '\n')
        for result in stage.results or ():
            values = json.loads(result.read_text())
            print('     ', ', '.join(f'{name} {value:.3f}'
                                     for name, value in values.items()))
        if stage.shows:
            print(f'      look at {stage.shows.resolve()}', flush=True)
        if stage is basis:
            wheel = jobs.begin(
                ['nice', 'bash', 'tools/setup_env.sh', 'wheel'], wheel_log)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('venv', type=Path, help='folder of the environment')
    venv = parser.parse_args().venv
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
