"""When a step takes the fused path, and when it must make way."""

import copy
import functools
from contextlib import nullcontext

import pytest
import torch
import torch.nn as nn
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.modules import module as every
from torch.nn.utils import parametrize, prune
from torch.utils._python_dispatch import TorchDispatchMode

from mmstepnet import steps
from mmstepnet.attentions import CBAM, IEBN, ChannelGate, Plain, StepNet
from mmstepnet.steps import ResidualStep
from tests.test_steps.cases import (
    GATES,
    NORMS,
    build,
    build_modes,
    inputs,
    run,
    worst,
)


class Case:
    """A step that is fused as it stands."""

    def __init__(self, calls):
        torch.manual_seed(0)
        self.calls = calls
        self.step, self.norm = build(StepNet, 4)
        self.step.activation = nn.ReLU()  # PyTorch has no hooks in place
        self.args = inputs((3, 4, 3, 3), torch.float32)
        self.before = self.take()
        assert calls

    @property
    def gate(self):
        return self.step.attention

    def part(self, name):
        return self.norm if name == 'norm' else self.step.get_submodule(name)

    def take(self, fused=True):
        self.calls.clear()
        return run(fused, self.step, self.norm, *self.args)

    def expect_reference(self, changed=None):
        """Its result, and whether that is another one than before."""
        expected = self.take(False)
        found = self.take()
        assert not self.calls
        for key, value in expected.items():
            assert torch.equal(found[key], value), key
        if changed is not None:
            assert torch.allclose(found['out'], self.before['out'],
                                  atol=1e-4) != changed

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


class Foreign(nn.Module):

    def forward(self, x, f):
        return torch.sigmoid(f)


class Spread(ChannelGate):
    pooled = ('x_std', )

    def forward(self, x_std):
        return torch.sigmoid(x_std)


class Times(StepNet):

    def forward(self, *means):
        return super().forward(*means) * 0.5


class Half(nn.Module):

    def forward(self, weight):
        return weight * 0.5


class Logged(torch.Tensor):
    """A subclass that wants to see what is called."""


def norm_without(**changes):
    norm = nn.BatchNorm2d(4)
    for name, value in changes.items():
        setattr(norm, name, value)
    return norm


def as_subclass(owner, name):
    def change(case):
        module = case.part(owner)
        tensors = (module._parameters if name in module._parameters
                   else module._buffers)
        tensors[name] = tensors[name].detach().as_subclass(Logged)
    return change


def transpose_pair(case):
    weight = case.gate.pair_weight
    weight.data = weight.data.t().contiguous().t()


OTHERS = {
    **{f'norm {type(norm).__name__}': dict(norm=norm) for norm in (
        nn.GroupNorm(2, 4), nn.InstanceNorm2d(4), IEBN(4),
        nn.SyncBatchNorm(4).eval())},
    'no affine': dict(norm=nn.BatchNorm2d(4, affine=False)),
    'no bias': dict(norm=norm_without(bias=None)),
    'no momentum': dict(norm=norm_without(momentum=None)),
    'no count': dict(norm=norm_without(num_batches_tracked=None)),
    'no statistics': dict(norm=norm_without(
        running_mean=None, running_var=None)),
    **{f'attention {type(gate).__name__}': dict(attention=gate) for gate in (
        CBAM(4), Foreign(), Plain(4), Spread(4), Times(4), None)},
    **{f'inputs {name}': dict(attention=StepNet(4, inputs=name))
       for name in ('x', 'x_next', 'difference')},
    **{f'bn {type(bn).__name__}': dict(bn=bn) for bn in (
        nn.SyncBatchNorm(4).eval(), nn.Identity(), nn.LayerNorm(4))},
    'ReLU6': dict(activation=nn.ReLU6()),
    'drop path': dict(drop_path=nn.Dropout2d(0.0)),
    **{f'{owner}.{name} of a subclass': as_subclass(owner, name)
       for owner, name in (
           ('attention', 'ie_weight'), ('attention.bn', 'weight'),
           ('attention.bn', 'running_mean'), ('norm', 'bias'),
           ('norm', 'running_var'), ('norm', 'num_batches_tracked'))},
    'parametrized': lambda case: parametrize.register_parametrization(
        case.gate, 'ie_weight', Half()),
    'pruned': lambda case: prune.l1_unstructured(case.norm, 'weight', 0.5),
    'not dense': transpose_pair,
}


@pytest.mark.parametrize('other', OTHERS)
def test_other_parts(other, case):
    change = OTHERS[other]
    if callable(change):
        change(case)
    for name, part in change.items() if isinstance(change, dict) else ():
        owner = dict(norm=case, bn=case.gate).get(name, case.step)
        setattr(owner, name, copy.deepcopy(part))
    if 'pruned' in other or 'subclass' in other:  # which do not copy
        case.calls.clear()
        case.step(*case.args[:2], case.norm).sum().backward()
        assert not case.calls
    else:
        case.expect_reference()


def test_other_maps(case):
    x, c, _ = case.args
    case.step.eval(), case.norm.eval()
    case.calls.clear()
    for maps in ((x.double(), c), (x[:1], c), (x[:0], c[:0]),
                 (x.as_subclass(Logged), c), (x, c.as_subclass(Logged))):
        case.step(*maps, case.norm)
    assert not case.calls


@pytest.mark.parametrize('norm', [
    nn.BatchNorm2d(3), nn.BatchNorm2d(1), nn.BatchNorm1d(4)])
@pytest.mark.parametrize('training', [True, False])
def test_errors_are_those_of_the_reference_path(norm, training, case):
    x, c, _ = case.args
    with pytest.raises((RuntimeError, ValueError), match='expected|shoul'):
        case.step(x, c, norm.train(training))
    with pytest.raises(ValueError, match='more than 1 value'):
        case.step(x[:1, :, :1, :1], c[:1, :, :1, :1], case.norm)
    with pytest.raises(ValueError, match='at least 2 images'):
        case.step(x[:1], c[:1], case.norm)


def test_transforms(case):
    case.step.eval(), case.norm.eval()
    x, c, _ = case.args

    def take(x):
        return case.step(x, c, case.norm)
    case.calls.clear()
    _, tangent = torch.func.jvp(take, (x, ), (c, ))
    grad = torch.func.grad(lambda x: take(x).sum())(x)
    torch.func.vmap(take)(x[None])
    graph = make_fx(take)(x)
    with forward_ad.dual_level():
        dual = forward_ad.unpack_dual(take(forward_ad.make_dual(x, c)))
    assert not case.calls
    torch.testing.assert_close(dual.tangent, tangent)
    torch.testing.assert_close(graph(x), take(x))
    x = x.clone().requires_grad_()
    take(x).sum().backward()
    torch.testing.assert_close(grad, x.grad, rtol=1e-4, atol=1e-5)
    assert len(case.calls) == 2


PARTS = 'norm', 'attention', 'attention.bn', 'activation', 'drop_path'


def halved(forward):
    """A decorator as libraries write them."""
    @functools.wraps(forward)
    def wrapper(*args, **kwargs):
        return forward(*args, **kwargs) * 0.5
    return wrapper


@pytest.mark.parametrize('part', PARTS)
def test_a_forward_that_somebody_set(part, case, monkeypatch):
    """On an object, or on a class."""
    module = case.part(part)
    module.forward = halved(module.forward)
    # A copy calls the first one's forward: only the results are compared.
    expected = case.take(False)['out']
    assert torch.equal(case.take()['out'], expected) and not case.calls
    del module.forward
    with monkeypatch.context() as patch:
        patch.setattr(type(module), 'forward', halved(type(module).forward))
        case.expect_reference(changed=True)
    case.expect_fused()


@pytest.mark.parametrize('part', [*PARTS, 'every module'])
@pytest.mark.parametrize('kind', [
    'forward_hook', 'forward_pre_hook', 'full_backward_hook',
    'full_backward_pre_hook'])
def test_hooks(part, kind, case):
    """They are called as often as without the fused step.

    In training a gate does not call its BN itself, see ``normalise``.
    """
    case.step.eval(), case.norm.eval()
    case.before, seen = case.take(), []
    handle = (getattr(every, f'register_module_{kind}')
              if part == 'every module' else
              getattr(case.part(part), f'register_{kind}'))(
                  lambda *args: seen.append(type(args[0])))
    try:
        case.expect_reference(changed=False)
    finally:
        handle.remove()
    kind = nn.BatchNorm1d if part == 'every module' else type(case.part(part))
    assert seen.count(kind) == 2
    case.expect_fused()


def test_buffers_and_values_are_read_at_every_step(case):
    """Nothing that somebody changes between steps is kept."""
    gate, norm = case.gate, case.norm
    for change in (lambda: setattr(gate, 'scale', 0.5),
                   lambda: setattr(gate.bn, 'eps', 0.1),
                   lambda: setattr(gate.bn, 'momentum', 0.7),
                   lambda: setattr(norm, 'eps', 0.1),
                   lambda: setattr(norm, 'weight', nn.Parameter(
                       torch.rand(4))),
                   lambda: gate.bn.train(False), lambda: norm.train(False),
                   lambda: setattr(norm, 'running_var', torch.rand(4))):
        change()
        found = case.take()
        assert case.calls
        error, name = worst(found, case.take(False))
        assert error < 1e-5, name


def test_accelerate(calls):
    """Its hooks set forward; the gate's gradients once were exactly 0."""
    hooks = pytest.importorskip('accelerate.hooks')
    step, norm = build(StepNet, 4)
    x, c, grad = inputs((3, 4, 3, 3), torch.float32)
    wanted = run(True, step, norm, x, c, grad)
    assert len(calls) == 1
    model = nn.ModuleDict({'step': step, 'norm': norm})
    hooks.attach_align_device_hook(model, execution_device='cpu')
    step(x, c, norm).backward(grad)
    assert len(calls) == 1
    for name, parameter in step.named_parameters():
        torch.testing.assert_close(
            parameter.grad, wanted[f'step.{name}'], rtol=1e-4, atol=1e-5)


def with_views(module):
    """Put views of one flat parameter in place of parameters, as FSDP."""
    named = [(m, name, p) for m in module.modules()
             for name, p in list(m._parameters.items())]
    flat = nn.Parameter(torch.cat([p.detach().flatten() for *_, p in named]))
    parts = flat.split([p.numel() for *_, p in named])
    for (owner, name, p), part in zip(named, parts):
        del owner._parameters[name]
        setattr(owner, name, part.view(p.shape))
    return flat


@pytest.mark.parametrize('whose', ['gate', 'norm'])
def test_views_of_fsdp_get_their_gradients(whose, calls):
    step, norm = build_modes('batch', 'batch')
    x, c, grad = inputs((3, 6, 5, 4))
    wanted = run(False, step, norm, x, c, grad)
    module, prefix = dict(gate=(step.attention, 'step.attention.'),
                          norm=(norm, 'norm.'))[whose]
    names = [prefix + name for name, _ in module.named_parameters()]
    flat = with_views(module)
    step(x, c, norm).backward(grad)
    torch.testing.assert_close(
        flat.grad, torch.cat([wanted[name].flatten() for name in names]))
    assert len(calls) == 1


@pytest.mark.parametrize('norm', NORMS)
@pytest.mark.parametrize('gate', GATES)
def test_observers_are_told_what_the_reference_path_tells(norm, gate, calls):
    """Of a step that stays fused, and gives what it gives unobserved."""
    step, norm = build_modes(norm, gate)
    x, c, grad = inputs((3, 6, 5, 4))
    unobserved = run(True, step, norm, x, c, grad)
    twin, seen = copy.deepcopy((step, norm)), []
    step.observe(lambda *args: seen.append(args[1:]))
    out = step(x, c, norm)
    assert torch.equal(out, unobserved['out']) and len(calls) == 2
    for key, value in step.named_buffers():
        assert torch.equal(value, unobserved[f'step.{key}'])
    twin[0].observe(lambda *args: seen.append(args[1:]))
    with steps.fused(False):
        twin[0](x, c, twin[1])
    for found, wanted in zip(*seen):
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    assert seen[0][0] is x and seen[0][3] is out


def test_a_mode_does_not_change_the_path(case):
    """Which a checkpoint takes again without the mode."""
    class Silent(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))
    for mode in (nullcontext(), Silent(), torch.device('cpu')):
        with mode:
            case.expect_fused()


def test_functions_in_place_of_modules(calls):
    step, (x, c, _) = ResidualStep(StepNet(4), torch.tanh, lambda r: r * 0), (
        inputs((3, 4, 3, 3), torch.float32))
    torch.testing.assert_close(step(x, c, nn.BatchNorm2d(4)), x.tanh())
    assert not calls
