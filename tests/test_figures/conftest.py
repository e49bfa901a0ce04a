import html
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import vl_convert

from mmstepnet.figures.runs import Accuracy, Run
from mmstepnet.models import StepResNetCIFAR
from mmstepnet.stiffness import FIELDS, Trajectories, TrajectoryRecorder
from tests.utils import perturb, seeded

ATTENTIONS = {'plain': None, 'se': dict(type='SE', reduction=4),
              'stepnet': dict(type='StepNet')}


def write_record(path, attention, seed, samples=40, depth=20, **settings):
    """Measure a randomly perturbed ResNet on random images."""
    model = perturb(StepResNetCIFAR(depth, attention=attention), seed).eval()
    images = seeded(samples, 3, 16, 16, seed=seed)
    with torch.no_grad(), TrajectoryRecorder(model) as recorder:
        model(images)
    recorder.trajectories(
        model=Path(path).parent.name, split='val', **settings).save(path)


@pytest.fixture(scope='session')
def work_dirs(tmp_path_factory):
    """Work directories of three models, two seeds each, with records."""
    root = tmp_path_factory.mktemp('work_dirs')
    paths = []
    for name, attention in ATTENTIONS.items():
        for seed in (0, 1):
            path = root / f'{name}_{seed}'
            write_record(
                path / 'stiffness' / 'stiffness_val_epoch_2.npz', attention,
                seed, epoch=2, iter=20)
            paths.append(path)
    return paths


@pytest.fixture(scope='session')
def runs(work_dirs):
    """Of each the accuracy after the second epoch; the first's is higher."""
    found = []
    for k, path in enumerate(work_dirs):
        model = path.name[:-2]
        accuracy = Accuracy('accuracy/top1', 90 + k - len(model) / 8,
                            'validation at 2', 'val', 90 + k, 1)
        recording = path / 'stiffness' / 'stiffness_val_epoch_2.npz'
        found.append(Run(f'{model} ({k % 2 + 1})', model,
                         Trajectories.load(recording), accuracy=accuracy,
                         source=str(recording)))
    return found


@pytest.fixture
def run(runs):
    """A run with an attention."""
    return next(run for run in runs if run.model == 'se')


def drawn(chart, kind):
    """What Vega says of each mark of a kind that it has drawn, by name."""
    svg = vl_convert.vegalite_to_svg(chart.to_dict())
    marks = re.findall(
        f'aria-label="([^"]*)"[^>]*aria-roledescription="{kind}"', svg)
    return [dict(field.split(': ', 1) for field in html.unescape(
        mark).replace('−', '-').split('; ')) for mark in marks]


def numbers(marks, field):
    return np.array([float(mark[field]) for mark in marks])


def texts(chart):
    """All texts that are drawn, in their order."""
    svg = vl_convert.vegalite_to_svg(chart.to_dict())
    return [html.unescape(text) for text in re.findall('>([^<>]+)</t', svg)]


def changed(run, **fields):
    """The run with other fields of its trajectories."""
    return replace(run, trajectories=replace(run.trajectories, **fields))


def checkpoints(run, **settings):
    """A training of one run, whose NSI is measured again and again.

    Args:
        run (Run): The run.
        **settings: A list of each, such as epochs.
    """
    (unit, values), = settings.items()
    return [changed(run, adaptive=k * run.trajectories.adaptive, settings=dict(
        run.trajectories.settings, **{unit: value})).trajectories
        for k, value in enumerate(values)]


def part_of(run, samples=slice(None), blocks=slice(None)):
    """The run with some samples and blocks alone."""
    whole = run.trajectories
    return changed(
        run,
        **{name: getattr(whole, name)[samples][:, blocks] for name in FIELDS},
        stages=whole.stages[blocks],
        blocks=list(np.array(whole.blocks)[blocks]))


def flat_run(run):
    """The run as a net of two blocks a stage would give it."""
    flat = part_of(run, blocks=[0, 2, 4])
    assert len(set(flat.trajectories.stages)) == 3
    return replace(flat, label='resnet18', model='resnet18')
