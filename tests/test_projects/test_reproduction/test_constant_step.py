"""The plan of the constant step: its frozen row, and its verdicts."""

import json
import math
import re

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, init_default_scope
from scipy import stats

from mmstepnet import measure_stiffness
from mmstepnet.attentions import StepNet
from mmstepnet.models import StepResNetCIFAR
from projects.reproduction import moving_gates
from projects.reproduction.constant_step import ROWS, table, verdict
from projects.reproduction.rows import RESULTS, read_rows
from tests.documents import ROOT

CONFIG = (
    'projects/reproduction/configs/small/'
    'resnet164_stepnet-frozen_cifar10-10k.py'
)


def test_frozen_steps_stay_constant():
    """Training moves every parameter but the adaptors'."""
    init_default_scope('mmpretrain')
    torch.manual_seed(0)
    cfg = Config.fromfile(ROOT / CONFIG)
    cfg.model.backbone.depth = 20
    cfg.model.head.in_channels = 64
    model = MODELS.build(cfg.model).train()
    model.init_weights()
    before = {k: p.clone() for k, p in model.named_parameters()}
    optim = build_optim_wrapper(model, cfg.optim_wrapper)
    for _ in range(2):
        optim.update_params(model(torch.rand(4, 3, 32, 32)).std())
    moved = {
        k for k, p in model.named_parameters() if not torch.equal(p, before[k])
    }
    assert moved == {k for k in before if '.attention.' not in k}
    steps = measure_stiffness(
        model.eval(), [torch.rand(2, 3, 32, 32)]
    ).step_mean
    np.testing.assert_allclose(steps, 1 / (1 + math.e), rtol=1e-6)


BOTH = (2.0, 16.0, 5.0, 13.0)  # -4.8 to 22.8
WIDE, NONE, LARGE, ALL = (
    (-20.0, 30.0, -25.0, 40.0),
    (-0.5, 0.5, 0.2, -0.3),
    (6.0, 7.0, 8.0, 6.5),
    (13.0, 14.0, 15.0, 14.5),
)


@pytest.mark.parametrize(
    'constant, adaptive, expected',
    [
        pytest.param(
            ALL, NONE, 'a constant step explains the lead', id='constant'
        ),
        pytest.param(
            NONE, ALL, 'the adaptive step explains the lead', id='adaptive'
        ),
        pytest.param(LARGE, LARGE, 'both have a share', id='both'),
        # One interval holds both 0 and +14.
        pytest.param(ALL, WIDE, 'undecided', id='constant, adaptive unsure'),
        pytest.param(WIDE, ALL, 'undecided', id='adaptive, constant unsure'),
        pytest.param(ALL, BOTH, 'undecided', id='constant, adaptive shares'),
        pytest.param(BOTH, ALL, 'undecided', id='adaptive, constant shares'),
        pytest.param(NONE, NONE, 'undecided', id='neither'),
    ],
)
def test_verdicts_of_the_plan(constant, adaptive, expected):
    assert verdict(constant, adaptive) == expected


def save(folder, accuracies, commit='a'):
    for name, values in accuracies.items():
        for seed, value in enumerate(values):
            path = folder / ROWS[name] / f'seed_{seed}.json'
            path.parent.mkdir(exist_ok=True)
            path.write_text(
                json.dumps(
                    dict(
                        seed=seed,
                        last=dict(epoch=6, metrics={'accuracy/top1': value}),
                        starts=[dict(machine='m', torch='2', commit=commit)],
                    )
                )
            )


def test_rows_of_the_plan(tmp_path):
    """Seeds that all three rows have, of one program alone."""
    save(
        tmp_path,
        dict(
            plain=(30.0, 31.0, 29.0, 30.0, 99.0),
            frozen=(44.0, 45.5, 43.0, 44.2),
            StepNet=(44.5, 45.0, 43.5, 44.0),
        ),
    )
    text = table(tmp_path)
    assert 'frozen − plain: +14.18, 97.5% interval' in text
    assert text.endswith('Verdict: a constant step explains the lead.')
    save(tmp_path, dict(plain=(30.0,)), commit='b')
    with pytest.raises(ValueError, match='2 programs'):
        table(tmp_path)


@pytest.mark.parametrize(
    'drops, word',
    [
        pytest.param([0.5, 2.0], 'adaptive', id='one drop is large'),
        pytest.param([0.4, -0.4], 'a scale', id='drops are small'),
        pytest.param([0.5, 0.4], 'undecided', id='drops of half a point'),
        pytest.param([-0.6, 0.1], 'undecided', id='of both signs'),
    ],
)
def test_whether_gates_adapt(drops, word):
    """By what replacing them takes from the accuracy, in points."""
    assert moving_gates.adaptive(drops) == word


def train(model, special, rate, decay):
    """Outputs after three steps of SGD; ``special`` has factors of its own."""
    ids = set(map(id, special))
    optimizer = torch.optim.SGD(
        [
            dict(params=[p for p in model.parameters() if id(p) not in ids]),
            dict(params=special, lr=0.1 * rate, weight_decay=0.01 * decay),
        ],
        lr=0.1,
        momentum=0.9,
        weight_decay=0.01,
    )
    images = torch.rand(
        8,
        3,
        8,
        8,
        dtype=torch.double,
        generator=torch.Generator().manual_seed(0),
    )
    for _ in range(3):
        optimizer.zero_grad()
        (model(images)[0].mean((2, 3)) * torch.arange(64)).std().backward()
        optimizer.step()
    return model(images)[0]


def test_a_constant_behind_a_bn():
    """The plain network with another start, rate and decay of γ and β."""
    c = 1 / (1 + math.e)
    frozen = StepResNetCIFAR(depth=20).double()
    frozen.init_weights()
    plain = StepResNetCIFAR(depth=20, attention=None).double()
    plain.load_state_dict(
        {
            k: v
            for k, v in frozen.state_dict().items()
            if '.attention.' not in k
        }
    )
    scaled = [
        p
        for stage in (plain.layer1, plain.layer2, plain.layer3)
        for block in stage
        if block.downsample is None
        for p in block.norm2.parameters()
    ]
    assert len(scaled) == 2 * 7
    with torch.no_grad():
        for parameter in scaled:
            parameter.mul_(c)
    gates = [p for k, p in frozen.named_parameters() if '.attention.' in k]
    torch.testing.assert_close(
        train(plain, scaled, rate=c**2, decay=1 / c**2),
        train(frozen, gates, rate=0, decay=0),
        rtol=1e-9,
        atol=1e-9,
    )
    text = (ROOT / 'docs' / 'papers_tables.md').read_text('utf-8')
    assert f'| start | c = {c:.4f} times their own |' in text
    assert f'| learning rate | c² = {c**2:.4f} times that of all' in text
    assert f'| weight decay | 1/c² = {c**-2:.1f} times that of all' in text
    steps = sum(
        isinstance(module, StepNet)
        for module in StepResNetCIFAR(depth=164).modules()
    )
    assert f'in the {steps} blocks that have a step' in text


def rows_of(name, kind):
    folder = moving_gates.KEPT / moving_gates.ROWS[name]
    return [
        json.loads((folder / f'{kind}_{seed}.json').read_text())
        for seed in range(3)
    ]


LABELS = dict(
    zip(
        moving_gates.ROWS,
        (
            'gate kept at 0.2689',
            'StepNet',
            "StepNet, the attention's learning rate × 10",
            'StepNet, [IEBN as cited](../../docs/glossary.md)',
        ),
    )
)
ACCURACY = {
    name: np.array(
        [
            row['last']['metrics']['accuracy/top1']
            for row in rows_of(name, 'seed')
        ]
    )
    for name in LABELS
}
STEP = {
    name: np.array(
        [np.mean(row['stiffness']['step']) for row in rows_of(name, 'seed')]
    )
    for name in LABELS
}


def over(name, other='frozen', level=0.95, decimals=2):
    """Mean difference and interval, by SciPy's test of two samples."""
    found = stats.ttest_rel(ACCURACY[name], ACCURACY[other])
    low, high = found.confidence_interval(level)
    mean = np.mean(ACCURACY[name] - ACCURACY[other])
    return tuple(f'{value:+.{decimals}f}' for value in (mean, low, high))


def page(name):
    """Its words, with the sign of numbers as Python writes it."""
    text = (ROOT / name).read_text('utf-8').replace('−', '-')
    return ' '.join(text.split())


def spread(values):
    return f'{min(values):.3f} to {max(values):.3f}'


@pytest.mark.parametrize('name', LABELS)
def test_rows_of_moving_gates(name):
    gates = rows_of(name, 'gates')
    deviations = [row['over images'] for row in gates]
    lost = ', '.join(
        f'{row["accuracy"] - row["channel means"]:.1f}' for row in gates
    )
    cells = [
        LABELS[name],
        f'{STEP[name].mean():.2f}',
        ', '.join(f'{value:.2f}' for value in ACCURACY[name]),
        f'{ACCURACY[name].mean():.1f}',
    ]
    if name == 'frozen':
        assert not any(deviations) and lost == '0.0, 0.0, 0.0'
        cells += ['', '0', '0']
    else:
        cells += [
            '{} ({} to {})'.format(*over(name)),
            spread(deviations),
            lost,
        ]
    assert f'| {" | ".join(cells)} |'.replace('|  |', '| |') in page(
        'projects/reproduction/RESULTS.md'
    )


def test_what_moving_gates_leave_open():
    """Accuracy follows the mean step, but for a tie; what is undecided."""
    text = page('projects/reproduction/RESULTS.md')
    steps, accuracies = (
        np.array(list(found.values())) for found in (STEP, ACCURACY)
    )
    assert (np.diff(steps, axis=0) > 0).all()
    gains = np.diff(accuracies, axis=0)
    assert [[*map(int, at)] for at in np.argwhere(gains < 0)] == [[1, 1]]
    assert f'but for a tie of {-gains[1, 1]:.2f} points in seed 1' in text
    lost = [
        row['accuracy'] - row['channel means']
        for name in LABELS
        if name != 'frozen'
        for row in rows_of(name, 'gates')
    ]
    assert f'lose {min(lost):.1f} to {max(lost):.1f} points' in text
    three = [
        over(name, level=1 - 0.05 / 3) for name in LABELS if name != 'frozen'
    ]
    assert all(float(low) < 0 < float(high) for _, low, high in three)
    first, second, third = (f'{low} to {high}' for _, low, high in three)
    assert f'contain 0: {first}, {second} and {third}' in text
    mean, low, high = over('StepNet, ×10', 'StepNet')
    assert f'× 10 minus StepNet is {mean} points ({low} to {high})' in text
    train = page('docs/train.md')
    assert f'{mean} points (95 % interval {low} to {high}' in train
    for name in ('StepNet', 'StepNet, ×10', 'StepNet, IEBN as cited'):
        assert (
            spread([row['over images'] for row in rows_of(name, 'gates')])
            in train
        )
        assert f'{STEP[name].mean():.2f}' in train


def test_the_commands_print_what_pages_say():
    assert f'\n{table()}\n' in (ROOT / 'docs' / 'papers_tables.md').read_text(
        'utf-8'
    )
    printed = moving_gates.table()
    for name in ('StepNet', 'StepNet, ×10', 'StepNet, IEBN as cited'):
        mean, low, high = over(name)
        _, least, most = over(name, level=1 - 0.05 / 3)
        assert (
            f'| {name} − frozen | {mean} | {low} to {high} | '
            f'{least} to {most} | 3 |'
        ) in printed
    mean, low, high = over('StepNet, ×10', 'StepNet')
    assert (
        f'| StepNet, ×10 − StepNet | {mean} | {low} to {high} | '
        'not planned | 3 |'
    ) in printed


MOVED = (
    'three networks whose gates moved were more accurate than one with '
    'the gate kept at 0.2689'
)


@pytest.mark.parametrize(
    'name', ['docs/papers_tables.md', 'projects/reproduction/RESULTS.md']
)
def test_no_page_says_more_than_the_moving_gates(name):
    """In each of three seeds, and no constant but the kept gate's."""
    for moved in list(LABELS)[1:]:
        assert (ACCURACY[moved] > ACCURACY['frozen']).all()
    assert np.allclose(STEP['frozen'], 0.2689, atol=5e-5)
    text = re.sub(r'\[([^]]*)\]\([^)]*\)', r'\1', page(name))
    assert MOVED in text.replace('Three networks', 'three networks')
    assert 'points ahead of a constant step' not in text


def test_the_page_has_the_constant_of_resnet_164():
    values = {
        label: np.array(
            [
                row['last']['metrics']['accuracy/top1']
                for row in read_rows(config, RESULTS / 'constant_step')
            ]
        )
        for label, config in ROWS.items()
    }
    text = re.sub(
        r'97.5 % interval |,? 97.5 %', '', page('docs/papers_tables.md')
    )
    for one, other, ends in (
        ('frozen', 'plain', '({:.1f} to {:.1f})'),
        ('StepNet', 'frozen', '({:+.1f} to {:+.1f})'),
    ):
        found = stats.ttest_rel(values[one], values[other])
        shown = ends.format(*found.confidence_interval(0.975))
        mean = f'{np.mean(values[one] - values[other]):+.1f}'
        assert re.search(
            rf'{re.escape(mean)}( points)?[^.;|]*? ?'
            rf'{re.escape(shown)}',
            text,
        ), (mean, shown)
