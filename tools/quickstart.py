"""Go from nothing to trained networks on real digits, and look at them.

    bash tools/quickstart.sh

makes the environment, and then calls this file. Each stage is done once, and
says what it takes. This file alone runs without any package.
"""

import argparse
import fcntl
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import NamedTuple, TextIO

OUT = Path('work_dirs/quickstart')
PICTURES = 'data/digits_detection'
READY = 'resnet20_stepnet_digits'  # a network that is trained
TOTAL = '10 to 20 minutes'

# What makes a training short enough to wait for, at some cost.
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


class Stage(NamedTuple):
    """What is done in one go.

    Attributes:
        title (str): What it does, and how long on two cores: the lower end
            on cores that are new and idle.
        command (list[str]): How.
        result (Path, optional): There once it is over, which is then left
            out by the next call. None runs it each time.
    """

    title: str
    command: list[str]
    result: Path | None = None


BASIS = Stage(
    'environment, 1 to 5 min', ['bash', 'tools/setup_env.sh', 'basis']
)
FIRST = Stage(
    'the first picture: how stiff a trained network is, 20 to 60 s',
    [
        'python',
        'tools/analysis_tools/stiffness.py',
        f'configs/digits/{READY}.py',
        f'weights/{READY}.safetensors',
        '--out',
        str(OUT / 'first_picture'),
    ],
    OUT / 'first_picture' / f'stiffness_test_{READY}_figure_3.png',
)
OPS = Stage(
    "mmcv's compiled ops, what is left of them, 0 to 8 min",
    ['bash', 'tools/setup_env.sh', 'ops'],
)


def hold(path: Path, what: str) -> TextIO:
    """Lock a file, until it is closed; say so where another call has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.open('w')
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(f'waiting for another call, which {what}', flush=True)
        fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def train(title: str, name: str, settings: dict[str, object]) -> Stage:
    """Train a config of the digits for less time."""
    epochs = settings['train_cfg.max_epochs']
    return Stage(
        title,
        [
            'python',
            'tools/train.py',
            f'configs/digits/{name}.py',
            '--work-dir',
            str(OUT / name),
            '--resume',
            '--cfg-options',
            *(f'{key}={value}' for key, value in settings.items()),
        ],
        OUT / name / f'epoch_{epochs}.pth',
    )


def evaluate(training: Stage) -> Stage:
    """Test what a training left."""
    folder = training.result.parent
    return Stage(
        'how good it is, 20 to 45 s',
        [
            'python',
            'tools/test.py',
            f'{folder}/{folder.name}.py',
            str(training.result),
            '--work-dir',
            f'{folder}/test',
            '--out',
            f'{folder}/metrics.json',
        ],
        folder / 'metrics.json',
    )


def draw(training: Stage, *options: str) -> Stage:
    """Draw what it finds in ten pictures."""
    folder = training.result.parent
    pictures = OUT / 'pictures' / folder.name
    return Stage(
        'what it finds in ten pictures, 20 to 45 s',
        [
            'python',
            'tools/test.py',
            f'{folder}/{folder.name}.py',
            str(training.result),
            '--work-dir',
            f'{OUT}/logs/{folder.name}',
            '--show-dir',
            str(pictures),
            '--cfg-options',
            *options,
            'test_dataloader.dataset.indices=10',
        ],
        pictures,
    )


def report(title: str, *trainings: Stage) -> Stage:
    """Draw the page that compares the stiffness of runs."""
    runs = [str(training.result.parent) for training in trainings]
    return Stage(
        title,
        [
            'python',
            '-m',
            'mmstepnet',
            'report',
            *runs,
            '--out',
            str(OUT / f'stiffness_of_{len(runs)}'),
        ],
    )


def plan() -> list[Stage]:
    """All stages; those behind the ops need them."""
    stepnet, se, plain = (
        train(title, f'resnet20_{name}_digits', CLASSIFIERS)
        for title, name in (
            ('StepNet learns to read digits, 1 to 2 min', 'stepnet'),
            ('SE does, too, 1 to 2 min', 'se'),
            ('and a plain network, 1 to 2 min', 'plain'),
        )
    )
    detector = train(
        'a detector with StepNet learns to find them, 3 to 6 min',
        'faster_rcnn_r18_stepnet_digits',
        DETECTOR,
    )
    return [
        FIRST,
        stepnet,
        evaluate(stepnet),
        draw(stepnet, 'default_hooks.visualization.rescale_factor=16'),
        report('its stiffness, 15 to 45 s', stepnet),
        se,
        evaluate(se),
        plain,
        evaluate(plain),
        report('stiffness of the three, 15 to 45 s', stepnet, se, plain),
        OPS,
        Stage(
            'pictures to find digits in, 15 to 45 s',
            [
                'python',
                'tools/dataset_converters/compose_digits.py',
                '--out',
                PICTURES,
            ],
        ),
        detector,
        evaluate(detector),
        draw(detector),
    ]


def run(stage: Stage, number: str, env: dict[str, str]) -> None:
    """Run a stage, and show what came out.

    Raises:
        SystemExit: It has failed.
    """
    log = OUT / 'logs' / f'{number.replace("/", "_of_")}.log'
    print(f'[{number}] {stage.title}', flush=True)
    start = time.monotonic()
    with log.open('wb') as file:
        done = subprocess.run(
            stage.command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=env,
        )
    lines = log.read_text(errors='replace').splitlines()
    if done.returncode:
        raise SystemExit(
            '\n'.join(
                [
                    *lines[-20:],
                    f'failed; the whole output is in {log}, and the '
                    'same command goes on from here',
                ]
            )
        )
    print(f'      done in {time.monotonic() - start:.0f} s', flush=True)
    if stage.result is None:
        print(*(f'      {line}' for line in lines[-1:]))
    elif stage.result.suffix == '.json':
        print(f'      {json.loads(stage.result.read_text())}')
    elif stage.result.suffix != '.pth':
        print(f'      look at {stage.result.resolve()}')


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument('venv', type=Path, help='folder of the environment')
    venv = parser.parse_args().venv
    path = f'{venv.resolve() / "bin"}{os.pathsep}{os.environ["PATH"]}'
    print(f'All of it takes {TOTAL} on two idle cores.', flush=True)
    try:
        with hold(OUT / 'lock', f'writes {OUT}'):
            run_stages(venv, path)
    except KeyboardInterrupt:
        raise SystemExit(
            '\ninterrupted; the same command goes on from here'
        ) from None


def run_stages(venv: Path, path: str) -> None:
    """Run what is not yet done, and build mmcv's wheel beside it."""
    # Threads that wait for each other would spin, and on a busy machine use
    # up what the others need to end.
    env = dict(os.environ, PATH=path, OMP_WAIT_POLICY='PASSIVE')
    (OUT / 'logs').mkdir(parents=True, exist_ok=True)
    stages = [
        stage
        for stage in plan()
        if stage.result is None or not stage.result.exists()
    ]
    lock = venv / 'setup.lock'  # that of setup_env.sh, whose words are kept
    hold(lock, f'makes {venv}').close()
    run(BASIS, f'0/{len(stages)}', env)
    # Beside the first trainings.
    with (OUT / 'logs' / 'wheel.log').open('wb') as log:
        wheel = subprocess.Popen(
            ['nice', 'bash', 'tools/setup_env.sh', 'wheel'],
            env=env,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        for number, stage in enumerate(stages, 1):
            if stage is OPS:
                wheel.wait()
                hold(lock, f'makes {venv}').close()
            run(stage, f'{number}/{len(stages)}', env)
    finally:
        if wheel.poll() is None:
            os.killpg(wheel.pid, signal.SIGTERM)


if __name__ == '__main__':
    main()
