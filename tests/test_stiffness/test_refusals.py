"""What this room refuses, and a word of what it says."""

import threading

import numpy as np
import pytest
import torch
import torch.nn as nn
import torchvision

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
from tests.test_stiffness.reference import no_hooks, recorded
from tests.test_stiffness.test_recorder import MAPS, Net, Windows
from tests.test_stiffness.test_trajectories import SETTINGS, arrays
from tests.utils import Adds, seeded

X = seeded(2, 6, 8)
ONE, TWO = [[1., 2.]], [[1., 2., 3.]]


def given(**change):
    return Trajectories(**{**arrays(), **change})


def net(add=torch.add):
    class Block(Adds):
        def forward(self, x):
            return add(x, self.f(x))

    return nn.Sequential(*[Block(nn.Linear(8, 8)) for _ in range(3)])


class Mixes(nn.Module):
    """Hyper-connections: several streams, mixed by a matrix."""

    def __init__(self):
        super().__init__()
        self.mix, self.layer = nn.Linear(2, 2), nn.Linear(8, 8)

    def forward(self, x):  # (N, L, C, streams)
        f = self.layer(x.mean(-1)).unsqueeze(-1)
        return self.mix(x) + f.expand_as(x)


class Elsewhere(Net):
    def forward(self, x):
        thread = threading.Thread(target=super().forward, args=(x, ))
        thread.start()
        thread.join()
        return x


class Direct(Net):
    """``block.forward(x)`` passes hooks by."""

    def forward(self, x):
        for block in self.blocks:
            x = block.forward(x)
        return x


class Twice(Net):
    """Test-time augmentation inside a model."""

    def forward(self, x):
        return super().forward(x) + super().forward(x.flip(3))


class Regions(Windows):
    """The second stage sees another number of regions in each image."""

    def forward(self, x):
        return self.window(self.image(x)[[0, 0, 1]])


class Masked(nn.TransformerEncoder):
    def forward(self, x):
        return super().forward(x, None, torch.arange(6).expand(2, 6) > 3)


class Simple(nn.Module):
    def forward(self, x):
        return x + 1


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


@pytest.mark.parametrize('call, error, word', [
    # Arguments of the mathematics, checked in one place.
    (lambda: neural_stiffness_index(ONE, TWO), ValueError, r'x_next.*\(1, 2'),
    (lambda: neural_stiffness_index([[1., np.nan]], ONE), ValueError,
     r'x holds NaN.*\(0, 1\)'),
    (lambda: neural_stiffness_index([[0., 0.]], ONE), ValueError,
     r'not finite at \(0,\): a state of norm 0'),
    (lambda: neural_stiffness_index(ONE, ONE, 0.0), ValueError, 'step is 0'),
    (lambda: stiffness_aware_index([[1.], [2.]], [0., 0.]), ValueError,
     r'must increase, but do not at \(0,\); sort'),
    (lambda: stiffness_aware_index([[1.], [2.]], [0., 1., 2.]), ValueError,
     r't must have shape \(2\)'),
    (lambda: stiffness_index(lambda v: (v - 2).log(), [1., 1.]), ValueError,
     r'rhs\(u\).*holds NaN'),
    *((lambda a=a: total_neural_stiffness(*a), ValueError, word)
      for a, word in (
        ((np.empty((0, 3)), [0, 0, 0]), r'nsi must have shape \(N, L\)'),
        ((np.ones(3), [0, 0, 0]), r'nsi must have shape \(N, L\)'),
        ((np.ones((2, 3)), [0, 0]), r'stages must have shape \(3\)'),
        (([[1.0, -0.5]], [0, 0]), r'not negative, got -0.5 at .*\(0, 1\)'),
        (([[1.0]], [0], 'mine'), "mu must be one of stage, all, got 'mine'"))),
    (lambda: stiffness_proportion([[1.]], [0], [1.], [[0.]]), ValueError,
     r'm2 must have shape \(B\)'),
    # Recordings.
    (lambda: given(x_norm=np.ones((4, 2))), ValueError,
     r'x_norm must have shape \(4, 3\)'),
    (lambda: given(unit=np.full((4, 3), np.nan)), ValueError,
     'unit holds NaN'),
    (lambda: given(blocks=['a']), ValueError, '3 blocks need as many names'),
    (lambda: given(settings=dict(model='net')), ValueError, 'model, split'),
    (lambda: given(settings=dict(SETTINGS, reading='mine')), ValueError,
     "adaptive, unit.* got 'mine'"),
    # Passes.
    (lambda: record(torchvision.models.vgg11(), torch.rand(1, 3, 32, 32)),
     ValueError, 'no residual step of VGG.*adds no'),
    (lambda: record(encoder(), X), ValueError, 'batch_first=True'),
    (lambda: record(encoder(Masked, batch_first=True), X), ValueError,
     'set_fastpath_enabled'),
    (lambda: record(net(), X[0, 0]), ValueError, r'a state \(8,\): samples'),
    (lambda: record(net(lambda x, f: torch._foreach_add([x], [f])[0]), X),
     ValueError, 'adds no two plain tensors where hooks and disp'),
    (lambda: record(nn.Sequential(*[Mixes() for _ in range(3)]),
                    torch.stack([X, X], -1)), ValueError,
     'both operands were computed from the state.*hyper-connections'),
    (lambda: record(Elsewhere(), MAPS), ValueError,
     'in another thread:.*blocks.0'),
    (lambda: record(Direct(), MAPS), ValueError,
     'Found, but left out:.*no container'),
    (lambda: record(Twice(), MAPS), RuntimeError, 'ran several times in one'),
    (lambda: record(Regions(), MAPS), ValueError,
     'window.1 .* axis of 2 samples is not clear'),
    (lambda: after([0, 1, 3]), RuntimeError, 'among them blocks.2;'),
    (lambda: after([0, 1, 2, 2, 3]), RuntimeError, 'among them blocks.2#2'),
    (by_itself, RuntimeError, 'ran by itself.*: blocks.0'),
    # Models, blocks and scores.
    (lambda: TrajectoryRecorder(None), TypeError, 'got NoneType; eval'),
    (lambda: find_steps(nn.Sequential(torch.jit.script(Simple())), X),
     TypeError, '0 was made by torch.jit'),
    (lambda: TrajectoryRecorder(Net(), 'layer9.*'), ValueError,
     r"'layer9.\*' matches no module. Names look like blocks"),
    (lambda: TrajectoryRecorder(Net(), []), TypeError, 'got '),
    (lambda: recorded(Net(), MAPS, blocks='blocks.0'), ValueError,
     'blocks.0: first of its stage'),
    (lambda: recorded(Net(), MAPS, blocks='blocks.1.first'), ValueError,
     'not chosen by blocks='),
    (lambda: recorded(Net(), MAPS, blocks=['blocks.1', nn.Conv2d]),
     ValueError, "Conv2d.* chooses no block"),
    (lambda: block_scores(Net(), [MAPS], 'nsi'), ValueError, 'score must be'),
    *((lambda score=score: block_scores(Net(), [MAPS * np.nan], score),
       ValueError, 'blocks.1.*NaN or infinite')
      for score in ('adaptive', 'influence')),
    (lambda: ablate_blocks(Net(), lambda model: np.nan, example=MAPS),
     ValueError, 'gives nan for the model as a whole'),
    (lambda: measure_gates(nn.Linear(8, 8), [X]), ValueError,
     'no step of Linear has an attention value'),
])
def test_refusals(call, error, word):
    with pytest.raises(error, match=f'(?s){word}'):
        call()


def test_the_same_model_in_two_threads():
    model, errors = net(), []

    def call():
        try:
            model(X)
        except RuntimeError as error:
            errors.append(str(error))

    class Calls(nn.Module):
        def forward(self, x):
            thread = threading.Thread(target=call)
            thread.start()
            thread.join()
            return x

    model.append(Calls())
    recorded(model, X)
    assert 'two threads' in errors[0]
