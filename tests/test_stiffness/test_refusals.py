"""What the recorder refuses, threads and parts."""

import threading

import pytest
import torch
import torch.distributed.fsdp
import torch.nn as nn
import torch.nn.functional as F

from mmstepnet import find_steps, insert_steps
from mmstepnet.stiffness import TrajectoryRecorder
from tests.test_stiffness.test_surroundings import (
    NAMES,
    Net,
    X,
    net,
    recorded,
    without_fast_path,  # noqa: F401, for all tests
)
from tests.utils import perturb


def test_a_fast_path_without_hooks_is_named():
    """Hooks alone switch off the fast path of PyTorch's encoder."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = perturb(nn.TransformerEncoder(layer, 3)).eval()
    with torch.no_grad():
        _, recorder = recorded(model, X)
    assert recorder.blocks == [n.replace('blocks', 'layers') for n in NAMES]
    assert 'TransformerEncoder' in TrajectoryRecorder.__doc__


def fails(model, error, message, *inputs):
    with TrajectoryRecorder(model) as recorder, torch.no_grad():
        with pytest.raises(error, match=f'(?s){message}'):
            model(*inputs)
    assert len(recorder) == 0
    assert not any(m._forward_hooks for m in model.modules())


def test_script_modules_are_refused():
    class Simple(nn.Module):
        def forward(self, x):
            return x + 1

    model = nn.Sequential(torch.jit.script(Simple()))
    with pytest.raises(TypeError, match='0 was made by torch.jit'):
        TrajectoryRecorder(model)
    with pytest.raises(TypeError, match='0 was made by torch.jit'):
        find_steps(model, X)


def test_jagged_tensors_are_refused():
    ragged = torch.nested.nested_tensor(
        [X[0], X[1, :4]], layout=torch.jagged)
    model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(2)])
    fails(model, ValueError, 'takes a nested tensor', ragged)


def test_subclasses_are_refused():
    tensors = pytest.importorskip(
        'torch.testing._internal.two_tensor').TwoTensor
    model = net()
    fails(model, ValueError, 'blocks.0.*TwoTensor', tensors(X, X.clone()))


class Adds(nn.Module):
    def __init__(self, add):
        super().__init__()
        self.layer, self.add = nn.Linear(8, 8), add

    def forward(self, x):
        return self.add(x, self.layer(x))


def test_states_of_one_dimension_are_refused():
    model = nn.Sequential(*[Adds(torch.add) for _ in range(3)])
    fails(model, ValueError, r'a state \(8,\): samples', X[0, 0])


@pytest.mark.parametrize('stepped', [False, True])
def test_passes_without_a_sample_are_refused(stepped):
    model = nn.Sequential(*[Adds(torch.add) for _ in range(3)])
    if stepped:
        insert_steps(model, example=X)
    fails(model, ValueError, r'a state \(0, .*: samples', X[:0])


def test_fused_additions_are_refused():
    model = nn.Sequential(*[
        Adds(lambda x, f: torch._foreach_add([x], [f])[0]) for _ in range(3)])
    fails(model, ValueError, 'a fused addition: _foreach_add', X)


def test_hyper_connections_are_refused():
    """Several streams, mixed by a matrix: no operand is the state."""
    class Mixes(nn.Module):
        def __init__(self):
            super().__init__()
            self.mix, self.layer = nn.Linear(2, 2), nn.Linear(8, 8)

        def forward(self, x):  # (N, L, C, streams)
            f = self.layer(x.mean(-1)).unsqueeze(-1)
            return self.mix(x) + f.expand_as(x)

    model = nn.Sequential(*[Mixes() for _ in range(3)])
    fails(model, ValueError, 'both operands were computed from the state.*'
          'hyper-connections', torch.stack([X, X], -1))


def test_threads():
    class Elsewhere(Net):
        def forward(self, x):
            outs = []
            thread = threading.Thread(
                target=lambda: outs.append(super(Elsewhere, self).forward(x)))
            thread.start()
            thread.join()
            return outs[0]

    model = net()
    model.__class__ = Elsewhere
    fails(model, ValueError, 'in another thread:.*blocks.0', X)


def test_the_same_model_in_two_threads():
    model, errors = net(), []

    class Calls(nn.Module):
        def forward(self, x):
            def call():
                try:
                    model(X)
                except RuntimeError as error:
                    errors.append(str(error))

            thread = threading.Thread(target=call)
            thread.start()
            thread.join()
            return x

    model.blocks.append(Calls())
    with TrajectoryRecorder(model), torch.no_grad():
        model(X)
    assert 'two threads' in errors[0]


def test_blocks_that_are_not_called():
    """``block.forward(x)`` passes hooks by."""
    class Direct(Net):
        def forward(self, x):
            for block in self.blocks:
                x = block.forward(x)
            return self.head(x.mean(1))

    model = net()
    model.__class__ = Direct
    fails(model, ValueError, 'Found, but left out:.*no container', X)


def test_a_part_that_runs_without_the_model():
    model = net()
    with TrajectoryRecorder(model) as recorder, torch.no_grad():
        model.blocks[0](X)
    with pytest.raises(RuntimeError, match='by itself.*: blocks.0'):
        recorder.nsi  # noqa: B018


@pytest.mark.parametrize('n', [1, 2, 5])
def test_frames_are_counted_back_to_their_clips(n):
    """Time is folded into the first dimension, as in video networks."""
    class Video(Net):
        def forward(self, clips):
            return super().forward(clips.flatten(0, 1)).view(
                *clips.shape[:2], -1).mean(1)

    model = net()
    model.__class__ = Video
    clips = torch.randn(n, 3, 6, 8)
    _, recorder = recorded(model, clips)
    assert recorder.nsi.shape == (n, 4)
    model.__class__ = Net
    _, frames = recorded(model, clips.flatten(0, 1))
    for key in ('x_norm', 'f_norm'):
        torch.testing.assert_close(
            recorder.record[key], frames.record[key].view(
                n, 3, 4).square().sum(1).sqrt(), rtol=1e-6, atol=0)


def test_functional_code_in_one_module_has_no_container():
    class Functional(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])

        def forward(self, x):
            for layer in self.layers:
                x = x + F.gelu(layer(x))
            return x

    steps = find_steps(Functional(), X)
    assert [s.left_out for s in steps] == ['no container'] * 3
    assert [s.ordinals for s in steps] == [(0, ), (1, ), (2, )]
