"""What this room refuses, and a word of what it says."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import torch.nn as nn
from torchvision.models import vgg11

from mmstepnet import ablate_blocks, block_scores, find_steps
from mmstepnet.stiffness import (
    Trajectories,
    TrajectoryRecorder,
    measure_gates,
    neural_stiffness_index,
    stiffness_aware_index,
    stiffness_index,
    stiffness_proportion,
    total_neural_stiffness,
)
from tests.test_stiffness.reference import (
    MAPS,
    Net,
    Residual,
    Windows,
    recorded,
    row,
)
from tests.utils import (
    RECORDING_SETTINGS,
    Adds,
    no_hooks,
    recording_arrays,
    seeded,
)

X = seeded(2, 6, 8)
ONE, TWO = [[1.0, 2.0]], [[1.0, 2.0, 3.0]]


class ByForeach(Adds):
    def forward(self, x):
        return torch._foreach_add([x], [self.f(x)])[0]


class Gated(Residual):
    """With a gate of its own."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Conv2d(8, 8, 1)

    def forward(self, x):
        f = self.f(x)
        return x + f * self.gate(f.mean((2, 3), keepdim=True)).sigmoid()


class Mixes(Adds):
    """Hyper-connections: several streams, mixed by a matrix."""

    def __init__(self, f):
        super().__init__(f)
        self.mix = nn.Linear(2, 2)

    def forward(self, x):  # (N, L, C, streams)
        return self.mix(x) + self.f(x.mean(-1)).unsqueeze(-1).expand_as(x)


def net(kind=Adds):
    return row(lambda: kind(nn.Linear(8, 8)))


class InThread(nn.Module):
    """Runs a model in another thread."""

    def __init__(self, model):
        super().__init__()
        self.blocks = model

    def forward(self, x):
        with ThreadPoolExecutor() as pool:
            return pool.submit(self.blocks, x).result()


def in_two_threads():
    model = net()
    model.append(InThread(None))
    model[3].blocks = model
    return model


class Twice(Net):
    """Test-time augmentation inside a model."""

    def forward(self, x):
        return super().forward(x) + super().forward(x.flip(3))


class Regions(Windows):
    """The second stage sees another number of regions in each image."""

    def forward(self, x):
        return self.window(self.image(x)[[0, 0, 1]])


class Times(nn.Sequential):
    """States (T, N, L, C)."""

    def forward(self, x):
        return super().forward(torch.stack([x] * 4))


class Last(nn.Sequential):
    """Its first input has another number of samples than the last."""

    def forward(self, inputs):
        return super().forward(inputs[-1])


class Masked(nn.TransformerEncoder):
    def forward(self, x):
        return super().forward(x, None, torch.arange(6).expand(2, 6) > 3)


def encoder(kind=nn.TransformerEncoder, **kwargs):
    return kind(nn.TransformerEncoderLayer(8, 2, 16, **kwargs), 3).eval()


def after(order):
    """Another order of blocks in the second pass."""
    model = Net()
    with TrajectoryRecorder(model) as recorder, torch.no_grad():
        model(MAPS)
        model.order = order
        try:
            model(MAPS)
        finally:
            assert len(recorder) == 2


def by_itself():
    model = Net()
    with TrajectoryRecorder(model) as recorder:
        model.blocks[0](MAPS)
    return recorder.nsi


def record(model, x):
    """A pass that is refused adds nothing and leaves no hook."""
    with TrajectoryRecorder(model) as recorder, torch.no_grad():
        try:
            model(x)
        finally:
            recorder.stop()
            assert len(recorder) == 0 and no_hooks(model)


VALUES = [  # a call that raises a ValueError, and what it says
    # Arguments of the mathematics, checked in one place.
    (lambda: neural_stiffness_index(ONE, TWO), r'x_next.*\(1, 2'),
    (
        lambda: neural_stiffness_index([[1.0, np.nan]], ONE),
        r'x holds NaN.*\(0, 1\)',
    ),
    (
        lambda: neural_stiffness_index([[0.0, 0.0]], ONE),
        r'not finite at \(0,\): a state of norm 0',
    ),
    (
        lambda: stiffness_aware_index([[1.0], [2.0]], [0.0, 0.0]),
        r'must increase, but do not at \(0,\); sort',
    ),
    (
        lambda: stiffness_aware_index([[1.0], [2.0]], [0.0, 1.0, 2.0]),
        r't must have shape \(2\)',
    ),
    (
        lambda: stiffness_index(lambda v: (v - 2).log(), [1.0, 1.0]),
        r'rhs\(u\).*holds NaN',
    ),
    *(
        (lambda a=a: total_neural_stiffness(*a), word)
        for a, word in (
            ((np.empty((0, 3)), [0, 0, 0]), r'nsi must have shape \(N, L\)'),
            ((np.ones((2, 3)), [0, 0]), r'stages must have shape \(3\)'),
            (([[1.0, -0.5]], [0, 0]), r'not negative, got -0.5 at .*\(0, 1\)'),
            (
                ([[1.0]], [0], 'mine'),
                "mu must be one of stage, all, got 'mine'",
            ),
        )
    ),
    (
        lambda: stiffness_proportion([[1.0]], [0], [1.0], [[0.0]]),
        r'm2 must have shape \(B\)',
    ),
    # Recordings.
    *(
        (
            lambda change=change: Trajectories(
                **{**recording_arrays(), **change}
            ),
            word,
        )
        for change, word in (
            (dict(x_norm=np.ones((4, 2))), r'x_norm must have shape \(4, 3\)'),
            (dict(blocks=['a']), '3 blocks need as many names'),
            (dict(settings=dict(model='net')), 'model, split'),
            (
                dict(settings=dict(RECORDING_SETTINGS, reading='mine')),
                "adaptive, unit.* got 'mine'",
            ),
        )
    ),
    # Passes.
    *(
        (lambda model=model, x=x: record(model(), x), word)
        for model, x, word in (
            (
                vgg11,
                torch.rand(1, 3, 32, 32),
                'no residual step of VGG.*adds no',
            ),
            (encoder, X, 'batch_first=True'),
            (
                lambda: encoder(Masked, batch_first=True),
                X,
                'set_fastpath_enabled',
            ),
            (net, X[0, 0], r'a state \(8,\): samples'),
            (lambda: net()[:1], X, 'Found, but left out.*no container'),
            (
                lambda: net(ByForeach),
                X,
                'adds no two plain tensors where hooks and disp',
            ),
            (
                lambda: net(Mixes),
                torch.stack([X, X], -1),
                'both operands were computed from .*hyper-connections',
            ),
            (lambda: InThread(net()), X, 'adds no two plain tensors'),
            (Regions, MAPS, 'window.1 .* axis of 2 samples is not clear'),
            *(
                (
                    lambda: Last(*net()),
                    inputs,
                    'axis of 2 samples is not clear',
                )
                for inputs in (
                    [X[0], torch.cat([X, X])],
                    (torch.ones(2, 5), torch.cat([X, X])),
                )
            ),
            (lambda: Times(*net()), X, 'axis of 2 samples is not clear'),
        )
    ),
    # Models, blocks and scores.
    *(
        (lambda blocks=blocks: recorded(Net(), MAPS, blocks=blocks), word)
        for blocks, word in (
            (
                'layer9.*',
                r"'layer9.\*' matches no module. Names look like blocks",
            ),
            ('blocks.0', 'blocks.0: first of its stage'),
            ('blocks.1.f.0', 'not chosen by blocks='),
        )
    ),
    *(
        (lambda score=score: block_scores(Net(), [MAPS * np.nan], score), word)
        for score, word in (
            ('nsi', 'score must be'),
            ('adaptive', 'blocks.1.*NaN or infinite'),
            ('influence', 'blocks.1.*NaN or infinite'),
        )
    ),
    (
        lambda: ablate_blocks(Net(), lambda model: np.nan, example=MAPS),
        'gives nan for the model as a whole',
    ),
    (
        lambda: measure_gates(nn.Linear(8, 8), [X]),
        'no step of Linear has an attention value',
    ),
    (
        lambda: measure_gates(
            row(Gated), [MAPS], lambda m: m.forward(MAPS).sum()
        ),
        'evaluate ran no gate',
    ),
]


@pytest.mark.parametrize(
    'call, error, word',
    [
        *((call, ValueError, word) for call, word in VALUES),
        (
            lambda: record(Twice(), MAPS),
            RuntimeError,
            'ran several times in one',
        ),
        (lambda: record(in_two_threads(), X), RuntimeError, 'two threads'),
        (lambda: after([0, 1, 3]), RuntimeError, 'among them blocks.2;'),
        (
            lambda: after([0, 1, 2, 2, 3]),
            RuntimeError,
            'among them blocks.2#2',
        ),
        (by_itself, RuntimeError, 'call the object that the recorder was'),
        (lambda: TrajectoryRecorder(None), TypeError, 'got NoneType; eval'),
        (
            lambda: neural_stiffness_index([1j], [1.0]),
            TypeError,
            'x is complex',
        ),
        (
            lambda: find_steps(
                nn.Sequential(torch.jit.script(nn.Identity())), X
            ),
            TypeError,
            '0 was made by torch.jit',
        ),
        (lambda: TrajectoryRecorder(Net(), []), TypeError, 'got '),
    ],
)
def test_refusals(call, error, word):
    with pytest.raises(error, match=f'(?s){word}'):
        call()
