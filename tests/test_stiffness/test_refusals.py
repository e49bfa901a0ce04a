"""What this room refuses, and a word of what it says."""

import threading

import numpy as np
import pytest
import torch
import torch.nn as nn
import torchvision

from mmstepnet import ablate_blocks, block_scores, find_steps
from mmstepnet.stiffness import (
    FIELDS,
    Trajectories,
    TrajectoryRecorder,
    block_stiffness,
    neural_stiffness_index,
    stiffness_aware_index,
    stiffness_index,
    stiffness_occurrence,
    stiffness_proportion,
    total_neural_stiffness,
    total_stiffness_proportion,
)
from tests.test_stiffness.reference import no_hooks, recorded
from tests.test_stiffness.test_recorder import MAPS, Net, Windows
from tests.test_stiffness.test_trajectories import SETTINGS, arrays
from tests.utils import Adds, seeded

X = seeded(2, 6, 8)
ONE, TWO = [[1., 2.]], [[1., 2., 3.]]
MATRIX = seeded(200, 200).double()


def given(**change):
    return lambda: Trajectories(**{**arrays(), **change})


MATHEMATICS = [
    (lambda: neural_stiffness_index(ONE, TWO), ValueError, r'x_next.*\(1, 2'),
    (lambda: neural_stiffness_index(np.empty((0, 2)), np.empty((0, 2))),
     ValueError, 'x must have shape'),
    (lambda: neural_stiffness_index([[1., np.nan]], ONE), ValueError,
     r'x holds NaN.*\(0, 1\)'),
    (lambda: neural_stiffness_index(ONE, [[1., np.inf]]), ValueError,
     'x_next holds NaN or infinity'),
    (lambda: neural_stiffness_index([[0., 0.]], ONE), ValueError,
     r'index \(0,\) has norm 0'),
    (lambda: neural_stiffness_index(ONE, ONE, 0.0), ValueError, 'step is 0'),
    *((lambda step=step: neural_stiffness_index(ONE, ONE, step), RuntimeError,
       'expanded size') for step in ([1., 1., 1.], [[1.], [1.]])),
    (lambda: neural_stiffness_index(torch.ones(1, 2) * 1j, ONE), TypeError,
     'x must be real'),
    (lambda: stiffness_aware_index([[1.], [2.]], [0., 0.]), ValueError,
     r'must increase, but t\[0\] = 0 and t\[1\] = 0; sort'),
    (lambda: stiffness_aware_index([[1.]], [0.]), ValueError,
     'one observation'),
    (lambda: stiffness_aware_index([[1.], [2.]], [0., 1., 2.]), ValueError,
     r't must have shape \(2\)'),
    (lambda: stiffness_aware_index([1., 2.], [0., 1.]), ValueError,
     r'u must have shape \(T, d\)'),
    (lambda: stiffness_aware_index([[0.], [2.]], [0., 1.]), ValueError,
     r'index \(0,\) has norm 0'),
    (lambda: stiffness_index(lambda v: v[:2], torch.ones(4)), ValueError,
     r'rhs\(u\) has shape \(2,\)'),
    (lambda: stiffness_index(lambda v: (v - 2).log(), [1., 1.]), ValueError,
     r'rhs\(u\).*holds NaN'),
    (lambda: stiffness_index(lambda v: v, [1.0, np.nan]), ValueError,
     'u holds NaN'),
    (lambda: stiffness_index(MATRIX.mv, MATRIX[0], maxiter=1), RuntimeError,
     'No convergence'),
    *((lambda f=f, a=a: f(*a), ValueError, word)
      for a, word in (
          ((np.empty((0, 3)), [0, 0, 0]), r'nsi must have shape \(N, L\)'),
          ((np.empty((3, 0)), []), r'nsi must have shape \(N, L\)'),
          ((np.ones(3), [0, 0, 0]), r'nsi must have shape \(N, L\)'),
          ((np.ones((2, 3)), [0, 0]), r'stages must have shape \(3\)'),
          ((np.ones((2, 3)), [0, 0, 0.5]), 'stages must be integers'),
          (([[1.0, np.nan]], [0, 0]), r'nsi holds NaN.*\(0, 1\)'),
          (([[1.0, -0.5]], [0, 0]), r'not negative, got -0.5 at .*\(0, 1\)'),
          (([[1.0]], [0], 'mine'), "mu must be one of stage, all, got 'mine'"))
      for f in (total_neural_stiffness, total_stiffness_proportion,
                block_stiffness)),
    (lambda: stiffness_occurrence([[1.]], [0], [-1.], [0.]), ValueError,
     'm1 must not be negative, got -1'),
    (lambda: stiffness_proportion([[1.]], [0], [1.], [[0.]]), ValueError,
     r'm2 must have shape \(A\)'),
    (lambda: total_neural_stiffness('high', [0]), TypeError, 'str'),
    (given(unit=np.ones((4, 2))), ValueError, r'unit must be \(4, 3\) finite'),
    (given(unit=np.full((4, 3), np.nan)), ValueError, 'unit must be'),
    (given(unit=np.full((4, 3), -1)), ValueError, 'unit must be.*below 0'),
    (given(stages=[0, 1]), ValueError, 'stages and blocks must be 3'),
    (given(stages=[0, 1, 0.5]), ValueError, 'stages and blocks must be 3'),
    (given(blocks=['a']), ValueError, 'stages and blocks must be 3'),
    (given(settings=dict(model='net')), ValueError, 'lack split, reading'),
    (given(settings=dict(SETTINGS, reading='mine')), ValueError, "'mine'"),
    (given(**{n: np.ones((0, 3)) for n in FIELDS}), ValueError,
     'is the data set empty'),
    (lambda: given()().tns('own'), ValueError, "adaptive, unit.* got 'own'"),
    (lambda: given()().save('recording.npy'), ValueError, r'named \*.npz'),
    (lambda: given(settings=dict(SETTINGS, a={1}))().save('no/x.npz'),
     TypeError, r'lists and dicts of them, got \{1'),
]


@pytest.mark.parametrize('call, error, word', MATHEMATICS)
def test_mathematics(call, error, word, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=word):
        call()


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
        outs = []
        thread = threading.Thread(
            target=lambda: outs.append(super(Elsewhere, self).forward(x)))
        thread.start()
        thread.join()
        return outs[0]


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


def encoder(kind=nn.TransformerEncoder, **kwargs):
    return kind(nn.TransformerEncoderLayer(8, 2, 16, **kwargs), 3).eval()


def jagged():
    return torch.nested.nested_tensor([X[0], X[1, :4]], layout=torch.jagged)


def two_tensors():
    tensors = pytest.importorskip('torch.testing._internal.two_tensor')
    return tensors.TwoTensor(X, X.clone())


PASSES = [
    (lambda: torchvision.models.vgg11(), lambda: torch.rand(1, 3, 32, 32),
     ValueError, 'no residual step of VGG.*adds no'),
    (lambda: encoder(), lambda: X, ValueError, 'batch_first=True'),
    (lambda: encoder(Masked, batch_first=True), lambda: X, ValueError,
     'layers.0.*set_fastpath_enabled'),
    (lambda: nn.Sequential(nn.Linear(8, 8)), jagged, ValueError,
     'takes a nested tensor'),
    # From PyTorch 2.15 its operations are seen as ones of plain tensors.
    (net, two_tensors, ValueError,
     '0 adds to.*TwoTensor|neither operand was computed'),
    (net, lambda: X[0, 0], ValueError, r'a state \(8,\): samples'),
    (net, lambda: X[:0], ValueError, r'a state \(0, .*: samples'),
    (lambda: net(add=lambda x, f: torch._foreach_add([x], [f])[0]), lambda: X,
     ValueError, 'adds no two tensors where hooks and dispatch'),
    (lambda: nn.Sequential(*[Mixes() for _ in range(3)]),
     lambda: torch.stack([X, X], -1), ValueError,
     'both operands were computed from the state.*hyper-connections'),
    (Elsewhere, lambda: MAPS, ValueError, 'in another thread:.*blocks.0'),
    (Direct, lambda: MAPS, ValueError, 'Found, but left out:.*no container'),
    (Twice, lambda: MAPS, RuntimeError, 'ran several times in one'),
    (Regions, lambda: MAPS, ValueError, 'window.1 .* no axis of the 2 sampl'),
]


@pytest.mark.parametrize('build, x, error, word', PASSES)
def test_passes(build, x, error, word):
    model = build().eval()
    with TrajectoryRecorder(model) as recorder, torch.no_grad():
        with pytest.raises(error, match=f'(?s){word}'):
            model(x())
    assert len(recorder) == 0 and no_hooks(model)


@pytest.mark.parametrize('order, word', [
    ([0, 1, 3], 'other steps than the first one, among them blocks.2'),
    ([0, 1, 2, 2, 3], 'among them blocks.2#2'),
])
def test_passes_that_run_other_blocks(order, word):
    model = Net()
    with TrajectoryRecorder(model) as recorder, torch.no_grad():
        model(MAPS)
        model.order = order
        with pytest.raises(RuntimeError, match=word):
            model(MAPS)
    assert len(recorder) == 2


class Simple(nn.Module):
    def forward(self, x):
        return x + 1


@pytest.mark.parametrize('call, error, word', [
    (lambda: TrajectoryRecorder(None), TypeError, 'got NoneType; eval'),
    *((lambda f=f: f(nn.Sequential(torch.jit.script(Simple()))), TypeError,
       '0 was made by torch.jit') for f in (TrajectoryRecorder, find_steps)),
    (lambda: TrajectoryRecorder(Net(), 'layer9.*'), ValueError,
     r"'layer9.\*' matches no module. Names look like blocks"),
    (lambda: TrajectoryRecorder(Net(), nn.LSTM), ValueError, 'LSTM.*no modu'),
    *((lambda blocks=blocks: TrajectoryRecorder(Net(), blocks), TypeError,
       'got ') for blocks in ([], [3])),
    (lambda: recorded(Net(), MAPS, blocks='blocks.0'), ValueError,
     'blocks.0: first of its stage'),
    (lambda: recorded(Net(), MAPS, blocks='blocks.1.first'), ValueError,
     'not chosen by blocks='),
    (lambda: recorded(Net(), MAPS, blocks=['blocks.1', nn.Conv2d]),
     ValueError, "Conv2d.* chooses no block"),
    (lambda: TrajectoryRecorder(Net()).nsi, RuntimeError, 'no forward pass'),
    (lambda: block_scores(Net(), [MAPS], 'nsi'), ValueError, 'score must be'),
    *((lambda score=score: block_scores(Net(), [MAPS * np.nan], score),
       ValueError, 'blocks.1 .*NaN or infinite features')
      for score in ('adaptive', 'influence')),
    (lambda: ablate_blocks(Net(), lambda model: np.nan, example=MAPS),
     ValueError, 'gives nan for the whole model'),
])
def test_calls(call, error, word):
    with pytest.raises(error, match=f'(?s){word}'):
        call()


def test_a_part_that_runs_without_the_model():
    model = Net()
    with TrajectoryRecorder(model) as recorder, torch.no_grad():
        model.blocks[0](MAPS)
    with pytest.raises(RuntimeError, match='by itself.*: blocks.0'):
        recorder.nsi  # noqa: B018


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
