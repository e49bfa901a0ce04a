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


def recording(**changes):
    """A recording of which something is another."""
    return Trajectories(**{**recording_arrays(), **changes})


VALUES = {  # a call that raises a ValueError, and what it says
    # Arguments of the mathematics, checked in one place.
    'two lengths': (
        lambda: neural_stiffness_index(ONE, TWO),
        r'x_next.*\(1, 2',
    ),
    'NaN': (
        lambda: neural_stiffness_index([[1.0, np.nan]], ONE),
        r'x holds NaN.*\(0, 1\)',
    ),
    'a state of zeros': (
        lambda: neural_stiffness_index([[0.0, 0.0]], ONE),
        r'not finite at \(0,\): a state of norm 0',
    ),
    'times that stand': (
        lambda: stiffness_aware_index([[1.0], [2.0]], [0.0, 0.0]),
        r'must increase, but do not at \(0,\); sort',
    ),
    'too many times': (
        lambda: stiffness_aware_index([[1.0], [2.0]], [0.0, 1.0, 2.0]),
        r't must have shape \(2\)',
    ),
    'a function that gives NaN': (
        lambda: stiffness_index(lambda v: (v - 2).log(), [1.0, 1.0]),
        r'rhs\(u\).*holds NaN',
    ),
    'no samples': (
        lambda: total_neural_stiffness(np.empty((0, 3)), [0, 0, 0]),
        r'nsi must have shape \(N, L\)',
    ),
    'too few stages': (
        lambda: total_neural_stiffness(np.ones((2, 3)), [0, 0]),
        r'stages must have shape \(3\)',
    ),
    'a negative NSI': (
        lambda: total_neural_stiffness([[1.0, -0.5]], [0, 0]),
        r'not negative, got -0.5 at .*\(0, 1\)',
    ),
    'an unknown mean': (
        lambda: total_neural_stiffness([[1.0]], [0], 'mine'),
        "mu must be one of stage, all, got 'mine'",
    ),
    'a table of degrees': (
        lambda: stiffness_proportion([[1.0]], [0], [1.0], [[0.0]]),
        r'm2 must have shape \(B\)',
    ),
    # Recordings.
    'a recording of two lengths': (
        lambda: recording(x_norm=np.ones((4, 2))),
        r'x_norm must have shape \(4, 3\)',
    ),
    'too few names': (
        lambda: recording(blocks=['a']),
        '3 blocks need as many names',
    ),
    'no split': (
        lambda: recording(settings=dict(model='net')),
        'model, split',
    ),
    'an unknown reading': (
        lambda: recording(settings=dict(RECORDING_SETTINGS, reading='mine')),
        "adaptive, unit.* got 'mine'",
    ),
    # Passes.
    'no residual network': (
        lambda: record(vgg11(), torch.rand(1, 3, 32, 32)),
        'no residual step of VGG.*adds no',
    ),
    'samples second': (lambda: record(encoder(), X), 'batch_first=True'),
    'a fast path': (
        lambda: record(encoder(Masked, batch_first=True), X),
        'set_fastpath_enabled',
    ),
    'no axis of samples': (
        lambda: record(net(), X[0, 0]),
        r'a state \(8,\): samples',
    ),
    'one block': (
        lambda: record(net()[:1], X),
        'Found, but left out.*no container',
    ),
    'added as a list': (
        lambda: record(net(ByForeach), X),
        'adds no two plain tensors where hooks and disp',
    ),
    'several streams': (
        lambda: record(net(Mixes), torch.stack([X, X], -1)),
        'projects its identity',
    ),
    'another thread': (
        lambda: record(InThread(net()), X),
        'adds no two plain tensors',
    ),
    'regions of images': (
        lambda: record(Regions(), MAPS),
        'window.1 .* axis of 2 samples is not clear',
    ),
    'two sizes of a list': (
        lambda: record(Last(*net()), [X[0], torch.cat([X, X])]),
        'axis of 2 samples is not clear',
    ),
    'two sizes of a tuple': (
        lambda: record(Last(*net()), (torch.ones(2, 5), torch.cat([X, X]))),
        'axis of 2 samples is not clear',
    ),
    'times before samples': (
        lambda: record(Times(*net()), X),
        'axis of 2 samples is not clear',
    ),
    # Models, blocks and scores.
    'no such block': (
        lambda: recorded(Net(), MAPS, blocks='layer9.*'),
        r"'layer9.\*' matches no module; there are blocks",
    ),
    'the first block': (
        lambda: recorded(Net(), MAPS, blocks='blocks.0'),
        'blocks.0: first of its stage',
    ),
    'a part of a block': (
        lambda: recorded(Net(), MAPS, blocks='blocks.1.f.0'),
        'not chosen by blocks=',
    ),
    'an unknown score': (
        lambda: block_scores(Net(), [MAPS * np.nan], 'nsi'),
        'score must be',
    ),
    'the adaptive score of NaN': (
        lambda: block_scores(Net(), [MAPS * np.nan], 'adaptive'),
        'blocks.1.*NaN or infinite',
    ),
    'the influence of NaN': (
        lambda: block_scores(Net(), [MAPS * np.nan], 'influence'),
        'blocks.1.*NaN or infinite',
    ),
    'an evaluation that gives NaN': (
        lambda: ablate_blocks(Net(), lambda model: np.nan, example=MAPS),
        'gives nan for the model as a whole',
    ),
    'no gates': (
        lambda: measure_gates(nn.Linear(8, 8), [X]),
        'no step of Linear has an attention value',
    ),
    'an evaluation without the gates': (
        lambda: measure_gates(
            row(Gated), [MAPS], lambda m: m.forward(MAPS).sum()
        ),
        'evaluate ran no gate',
    ),
}
OTHERS = {  # a call, its error, and what it says
    'a block twice': (
        lambda: record(Twice(), MAPS),
        RuntimeError,
        'ran several times in one',
    ),
    'two threads': (
        lambda: record(in_two_threads(), X),
        RuntimeError,
        'two threads',
    ),
    'a block that is missing later': (
        lambda: after([0, 1, 3]),
        RuntimeError,
        'among them blocks.2;',
    ),
    'a block twice later': (
        lambda: after([0, 1, 2, 2, 3]),
        RuntimeError,
        'among them blocks.2#2',
    ),
    'a block by itself': (
        by_itself,
        RuntimeError,
        'call the object that the recorder was',
    ),
    'no model': (
        lambda: TrajectoryRecorder(None),
        TypeError,
        'got None; eval',
    ),
    'complex numbers': (
        lambda: neural_stiffness_index([1j], [1.0]),
        TypeError,
        'x is complex',
    ),
    'a scripted module': (
        lambda: find_steps(nn.Sequential(torch.jit.script(nn.Identity())), X),
        TypeError,
        '0 was made by torch.jit',
    ),
    'a list of no blocks': (
        lambda: TrajectoryRecorder(Net(), []),
        TypeError,
        'got ',
    ),
}


@pytest.mark.parametrize('call, word', VALUES.values(), ids=VALUES)
def test_wrong_values(call, word):
    with pytest.raises(ValueError, match=f'(?s){word}'):
        call()


@pytest.mark.parametrize('call, error, word', OTHERS.values(), ids=OTHERS)
def test_other_refusals(call, error, word):
    with pytest.raises(error, match=f'(?s){word}'):
        call()
