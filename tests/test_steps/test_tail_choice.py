"""When a step takes the fused path, and when it must make way."""

import copy
from contextlib import nullcontext

import pytest
import torch
import torch.nn as nn
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from mmstepnet import steps
from mmstepnet.attentions import CBAM, IEBN, SE, LayerScale, Plain, StepNet
from tests.test_steps.cases import build, inputs, run, worst
from tests.utils import same


class Case(nn.Module):
    """A step that is fused as it stands."""

    def __init__(self, calls):
        super().__init__()
        self.calls, self.args = calls, inputs((3, 4, 3, 3))
        self.step, self.norm = (
            module.double() for module in build(StepNet, 4)
        )
        self.step.activation = nn.ReLU()  # PyTorch has no hooks in place
        self.step.drop_path = nn.Identity()
        self.gate = self.step.attention
        self.before = self.take()
        assert calls

    def take(self, fused=True):
        self.calls.clear()
        return run(fused, self.step, self.norm, *self.args)

    def expect_reference(self):
        """Its result."""
        expected = self.take(False)
        found = self.take()
        assert not self.calls
        for key, value in expected.items():
            assert torch.equal(found[key], value), key
        return found

    def expect_fused(self):
        assert torch.equal(self.take()['out'], self.before['out'])
        assert self.calls


@pytest.fixture
def case(calls):
    return Case(calls)


def test_switch(case, monkeypatch):
    """On by default, until somebody says so."""
    monkeypatch.setattr(steps.fused, 'mode', True)
    x, c, _ = case.args
    for fused in (False, True):
        case.calls.clear()
        with steps.fused(fused):
            case.step(x, c, case.norm)
        assert bool(case.calls) == fused
    steps.fused(False)  # as a call, from there on
    case.step(x, c, case.norm)
    assert len(case.calls) == 1


class Times(StepNet):
    def forward(self, *means):
        return super().forward(*means) * 0.5


class Logged(torch.Tensor):
    """A subclass that wants to see what is called."""


def norm_without(**changes):
    norm = nn.BatchNorm2d(4)
    for name, value in changes.items():
        setattr(norm, name, value)
    return norm


OTHERS = {
    'GroupNorm': ('norm', nn.GroupNorm(2, 4)),
    'InstanceNorm': ('norm', nn.InstanceNorm2d(4)),
    'IEBN': ('norm', IEBN(4)),
    'SyncBatchNorm': ('norm', nn.SyncBatchNorm(4).eval()),
    'a norm without weights': ('norm', nn.BatchNorm2d(4, affine=False)),
    'a norm without bias': ('norm', norm_without(bias=None)),
    'a norm without momentum': ('norm', norm_without(momentum=None)),
    'a norm without count': ('norm', norm_without(num_batches_tracked=None)),
    'a norm without statistics': (
        'norm',
        norm_without(running_mean=None, running_var=None),
    ),
    'CBAM': ('step.attention', CBAM(4)),
    'SE': ('step.attention', SE(4)),
    'LayerScale': ('step.attention', LayerScale(4)),
    'Plain': ('step.attention', Plain(4)),
    'a subclass of StepNet': ('step.attention', Times(4)),
    'no gate': ('step.attention', None),
    'StepNet of x': ('step.attention', StepNet(4, inputs='x')),
    'StepNet of x_next': ('step.attention', StepNet(4, inputs='x_next')),
    'StepNet of difference': (
        'step.attention',
        StepNet(4, inputs='difference'),
    ),
    'SyncBatchNorm in the gate': (
        'step.attention.bn',
        nn.SyncBatchNorm(4).eval(),
    ),
    'no norm in the gate': ('step.attention.bn', nn.Identity()),
    'LayerNorm in the gate': ('step.attention.bn', nn.LayerNorm(4)),
    'ReLU6': ('step.activation', nn.ReLU6()),
    'tanh': ('step.activation', torch.tanh),
    'a dropout': ('step.drop_path', nn.Dropout2d(0.0)),
    'a drop path': ('step.drop_path', lambda residual: residual * 0),
    **{
        f'a subclass of {name}': (name, lambda t: t.as_subclass(Logged))
        for name in (
            'step.attention.ie_weight',
            'step.attention.bn.weight',
            'step.attention.bn.running_mean',
            'norm.bias',
            'norm.running_var',
            'norm.num_batches_tracked',
        )
    },
    'strided weights': (
        'step.attention.pair_weight',
        lambda t: t.t().contiguous().t(),
    ),
}
"""Places of parts and what else may stand there; of tensors, what of them."""


@pytest.mark.parametrize('place, other', OTHERS.values(), ids=OTHERS)
def test_other_parts(place, other, case):
    name = place.rpartition('.')[2]
    owner = case.get_submodule(place.rpartition('.')[0])
    tensors = (
        owner._parameters if name in owner._parameters else (owner._buffers)
    )
    if name in tensors:
        tensors[name] = other(tensors[name].detach())
    else:
        owner._modules.pop(name)
        other = copy.deepcopy(other)
        setattr(
            owner,
            name,
            other.double() if isinstance(other, nn.Module) else other,
        )
    case.calls.clear()
    x, c, _ = case.args
    case.step(x, c, case.norm)
    assert not case.calls


def test_other_maps(case):
    x, c, _ = case.args
    case.eval()
    case.calls.clear()
    for maps in (
        (x.float(), c),
        (x[:1], c),
        (x[:0], c[:0]),
        (x.as_subclass(Logged), c),
        (x, c.as_subclass(Logged)),
    ):
        case.step(*maps, case.norm)
    assert not case.calls


@pytest.mark.parametrize(
    'norm',
    [
        pytest.param(nn.BatchNorm2d(3), id='three channels'),
        pytest.param(nn.BatchNorm2d(1), id='one channel'),
        pytest.param(nn.BatchNorm1d(4), id='vectors'),
    ],
)
@pytest.mark.parametrize('training', [True, False])
def test_errors_are_those_of_the_reference_path(norm, training, case):
    x, c, _ = case.args
    with pytest.raises((RuntimeError, ValueError), match='expected|shoul'):
        case.step(x, c, norm.double().train(training))
    with pytest.raises(ValueError, match='more than 1 value'):
        case.step(x[:1, :, :1, :1], c[:1, :, :1, :1], case.norm)
    with pytest.raises(ValueError, match='at least 2 images'):
        case.step(x[:1], c[:1], case.norm)


def test_transforms(case):
    case.eval()
    x, c, _ = case.args

    def take(x):
        return case.step(x, c, case.norm)

    case.calls.clear()
    _, tangent = torch.func.jvp(take, (x,), (c,))
    grad = torch.func.grad(lambda x: take(x).sum())(x)
    torch.func.vmap(take)(x[None])
    graph = make_fx(take)(x)
    with forward_ad.dual_level():
        dual = forward_ad.unpack_dual(take(forward_ad.make_dual(x, c)))
    assert not case.calls
    same(dual.tangent, tangent)
    same(graph(x), take(x))
    x = x.clone().requires_grad_()
    take(x).sum().backward()
    same(grad, x.grad)
    assert len(case.calls) == 2


PARTS = (
    'norm',
    'step.attention',
    'step.attention.bn',
    'step.activation',
    'step.drop_path',
)


@pytest.mark.parametrize('part', PARTS)
def test_a_forward_that_somebody_set(part, case):
    module = case.get_submodule(part)
    forward = module.forward
    module.forward = lambda *args: forward(*args) * 0.5
    # A copy calls the first one's forward: only the results are compared.
    expected = case.take(False)['out']
    assert torch.equal(case.take()['out'], expected) and not case.calls
    assert not torch.allclose(expected, case.before['out'], atol=1e-4)
    del module.forward
    case.expect_fused()


@pytest.mark.parametrize(
    'kind',
    [
        'forward_hook',
        'forward_pre_hook',
        'full_backward_hook',
        'full_backward_pre_hook',
    ],
)
@pytest.mark.parametrize('part', PARTS)
def test_hooks(part, kind, case):
    """Called as often as on the reference path."""
    case.eval()
    case.before, seen = case.take(), []
    register = getattr(case.get_submodule(part), f'register_{kind}')
    handle = register(lambda *args: seen.append(args))
    found = case.expect_reference()
    same(found['out'], case.before['out'])
    handle.remove()
    assert len(seen) == 2
    case.expect_fused()


def test_buffers_and_values_are_read_at_every_step(case):
    """Nothing that somebody changes between steps is kept."""
    gate, norm = case.gate, case.norm
    for owner, name, value in (
        (gate, 'scale', 0.5),
        (gate.bn, 'eps', 0.1),
        (gate.bn, 'momentum', 0.7),
        (norm, 'eps', 0.1),
        (norm, 'weight', nn.Parameter(torch.rand(4).double())),
        (gate.bn, 'training', False),
        (norm, 'training', False),
        (norm, 'running_var', torch.rand(4).double()),
    ):
        setattr(owner, name, value)
        found = case.take()
        assert case.calls
        error, name = worst(found, case.take(False))
        assert error < 1e-10, name


def test_a_mode_or_an_observer_does_not_change_the_path(case):
    """Which a checkpoint takes again without either."""

    class Silent(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    for mode in (nullcontext(), Silent(), torch.device('cpu')):
        with mode:
            case.expect_fused()
    handle, seen = case.step.observe(lambda *args: seen.append(args)), []
    out = case.step(*case.args[:2], case.norm)
    handle.remove()
    ((_, x, *_, told),) = seen
    assert x is case.args[0] and told is out
    assert torch.equal(out, case.before['out'])
