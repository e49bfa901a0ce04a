import html
import itertools
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
import vl_convert

from mmstepnet.figures.runs import Accuracy, Run
from mmstepnet.models import StepResNetCIFAR
from mmstepnet.stiffness import FIELDS, TrajectoryRecorder
from tests.utils import perturb, seeded

ATTENTIONS = {
    'plain': None,
    'se': dict(type='SE', reduction=4),
    'stepnet': dict(type='StepNet'),
}


@pytest.fixture(scope='session')
def runs():
    """Three models, two seeds each, randomly perturbed, on random images.

    Of each the accuracy after the second epoch; the first's is higher.
    """
    found = []
    for k, (name, seed) in enumerate(itertools.product(ATTENTIONS, (0, 1))):
        model = perturb(
            StepResNetCIFAR(20, attention=ATTENTIONS[name]), seed
        ).eval()
        with torch.no_grad(), TrajectoryRecorder(model) as recorder:
            model(seeded(40, 3, 16, 16, seed=seed))
        found.append(
            Run(
                f'{name} ({seed + 1})',
                name,
                recorder.trajectories(
                    model=name, split='val', epoch=2, iter=20
                ),
                accuracy=Accuracy(
                    'accuracy/top1',
                    90 + k - len(name) / 8,
                    'validation at 2',
                    'val',
                ),
                source=f'{name}_{seed}/stiffness_val_epoch_2.npz',
            )
        )
    return found


@pytest.fixture
def run(runs):
    """A run with an attention."""
    return next(run for run in runs if run.model == 'se')


def drawn(chart, kind):
    """What Vega says of each mark of a kind that it has drawn, by name."""
    svg = vl_convert.vegalite_to_svg(chart.to_dict())
    marks = re.findall(
        f'aria-label="([^"]*)"[^>]*aria-roledescription="{kind}"', svg
    )
    return [
        dict(
            field.split(': ', 1)
            for field in html.unescape(mark).replace('−', '-').split('; ')
        )
        for mark in marks
    ]


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
    ((unit, values),) = settings.items()
    return [
        changed(
            run,
            adaptive=k * run.trajectories.adaptive,
            settings=dict(run.trajectories.settings, **{unit: value}),
        ).trajectories
        for k, value in enumerate(values)
    ]


def part_of(run, samples=slice(None), blocks=slice(None)):
    """The run with some samples and blocks alone."""
    whole = run.trajectories
    return changed(
        run,
        **{name: getattr(whole, name)[samples][:, blocks] for name in FIELDS},
        stages=whole.stages[blocks],
        blocks=list(np.array(whole.blocks)[blocks]),
    )


def flat_run(run):
    """The run as a net of two blocks a stage would give it."""
    flat = part_of(run, blocks=[0, 2, 4])
    assert len(set(flat.trajectories.stages)) == 3
    return replace(flat, label='resnet18', model='resnet18')
