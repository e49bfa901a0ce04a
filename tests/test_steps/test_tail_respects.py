"""What somebody else put on a module runs: the fused step makes way."""

import copy
import functools
import types

import pytest
import torch
import torch.nn as nn
from torch.nn.modules import module as every
from torch.nn.utils import parametrize, prune

from mmstepnet import steps
from mmstepnet.attentions import ChannelGate, StepNet
from tests.test_steps.cases import build, inputs, run, worst


class Case:
    """A step that is fused as it stands."""

    def __init__(self, calls):
        torch.manual_seed(0)
        self.calls = calls
        self.step, self.norm = build(StepNet, 4)
        self.step.activation = nn.ReLU()  # PyTorch has no hooks in place
        self.args = inputs((3, 4, 3, 3), torch.float32)
        self.parts = dict(
            norm=self.norm, gate=self.step.attention,
            gate_bn=self.step.attention.bn, activation=self.step.activation,
            drop_path=self.step.drop_path)
        self.plain = run(False, self.step, self.norm, *self.args)['out']
        self.before = self.take()['out']
        assert calls

    def take(self):
        self.calls.clear()
        return run(True, self.step, self.norm, *self.args)

    def expect_reference(self, changed=True):
        """Its result, which is another one than before."""
        expected = run(False, self.step, self.norm, *self.args)
        found = self.take()
        assert not self.calls
        for key, value in expected.items():
            assert torch.equal(found[key], value), key
        assert torch.equal(found['out'], self.plain) != changed

    def expect_fused(self):
        out = self.take()['out']
        assert self.calls and torch.equal(out, self.before)


@pytest.fixture
def case(calls):
    return Case(calls)


PARTS = 'norm', 'gate', 'gate_bn', 'activation', 'drop_path'


def halved(forward):
    """A decorator as libraries write them."""
    @functools.wraps(forward)
    def wrapper(*args, **kwargs):
        return forward(*args, **kwargs) * 0.5
    return wrapper


@pytest.mark.parametrize('part', PARTS)
def test_forward_of_an_object(part, case):
    module = case.parts[part]

    def forward(self, *args):
        return type(self).forward(self, *args) * 0.5
    module.forward = types.MethodType(forward, module)
    case.expect_reference()
    del module.forward
    case.expect_fused()
    module.forward = halved(module.forward)
    # A copy calls the first one's forward: only the results are compared.
    expected = run(False, case.step, case.norm, *case.args)['out']
    assert torch.equal(case.take()['out'], expected) and not case.calls


@pytest.mark.parametrize('part', PARTS)
@pytest.mark.parametrize('wrapped', [False, True])
def test_forward_of_a_class(part, wrapped, case, monkeypatch):
    cls = type(case.parts[part])
    plain = cls.forward
    with monkeypatch.context() as patch:
        patch.setattr(cls, 'forward', halved(plain) if wrapped else (
            lambda self, *args: plain(self, *args) * 0.5))
        case.expect_reference()
    case.expect_fused()


@pytest.mark.parametrize('part', PARTS)
@pytest.mark.parametrize('kind', [
    'register_forward_hook', 'register_forward_pre_hook',
    'register_full_backward_hook', 'register_full_backward_pre_hook'
])
def test_hooks(part, kind, case):
    """They are called as often as without the fused step."""
    seen = []
    handle = getattr(case.parts[part], kind)(lambda *a: seen.append(a[0]))
    case.expect_reference(changed=False)
    assert len(seen) == 2
    handle.remove()
    case.expect_fused()


@pytest.mark.parametrize('kind', [
    'register_module_forward_hook', 'register_module_forward_pre_hook',
    'register_module_full_backward_hook',
    'register_module_full_backward_pre_hook'
])
def test_global_hooks(kind, case):
    seen = []
    handle = getattr(every, kind)(lambda module, *a: seen.append(type(module)))
    try:
        case.expect_reference(changed=False)
    finally:
        handle.remove()
    assert seen.count(nn.BatchNorm1d) == 2
    case.expect_fused()


def test_buffers_and_values_are_read_at_every_step(case):
    """Nothing that somebody changes between steps is kept."""
    gate, norm = case.step.attention, case.norm
    for change in (lambda: setattr(gate, 'scale', 0.5),
                   lambda: setattr(gate.bn, 'eps', 0.1),
                   lambda: setattr(gate.bn, 'momentum', 0.7),
                   lambda: setattr(norm, 'eps', 0.1),
                   lambda: setattr(norm, 'weight', nn.Parameter(
                       torch.rand(4))),
                   lambda: gate.bn.train(False), lambda: norm.train(False),
                   lambda: setattr(norm, 'running_var', torch.rand(4))):
        change()
        error, name = worst(*(run(fused, case.step, norm, *case.args)
                              for fused in (True, False)))
        assert error < 1e-5, name
    assert len(case.calls) == 9


def test_a_gate_that_reads_a_number_of_its_module(case):
    class Times(StepNet):
        factor = 1.0

        def forward(self, *means):
            return super().forward(*means) * self.factor

    class Constant(ChannelGate):
        pooled = ('x_mean', )
        factor = 1.0

        def forward(self, x_mean):
            return torch.sigmoid(x_mean) * self.factor
    for kind in (Times, Constant):
        case.step.attention = kind(4)
        outs = []
        for factor in (1.0, 2.0, 0.0):
            case.step.attention.factor = factor
            outs.append(run(True, case.step, case.norm, *case.args)['out'])
            case.expect_reference()
        assert torch.equal(outs[2], case.args[0].relu())
        assert not torch.equal(outs[0], outs[1])


@pytest.mark.parametrize('part', ['norm', 'gate_bn'])
@pytest.mark.parametrize('changes', [
    dict(bias=None), dict(weight=None, bias=None), dict(momentum=None),
    dict(momentum=None, num_batches_tracked=None),
    dict(num_batches_tracked=None)
], ids=lambda changes: '-'.join(changes))
def test_other_batch_norms(part, changes, case):
    bn = case.parts[part]
    for name, value in changes.items():
        setattr(bn, name, value)
    if 'weight' in changes:
        nn.init.zeros_(case.step.attention.pair_weight)
    case.expect_reference(changed='bias' in changes)


def test_a_norm_without_bias(case):
    """As PyTorch 2.12 has it."""
    try:
        norm = nn.BatchNorm2d(4, bias=False)
    except TypeError:
        pytest.skip('needs a BatchNorm2d that takes a bias')
    case.norm = norm
    case.expect_reference()


def test_pruning_and_parametrizations(case):
    prune.l1_unstructured(case.norm, 'weight', 0.5)
    case.calls.clear()
    case.step(*case.args[:2], case.norm).sum().backward()
    assert not case.calls
    grad = case.norm.weight_orig.grad
    assert (grad == 0).sum() == 2  # of those that were pruned
    prune.remove(case.norm, 'weight')
    case.take()
    assert case.calls

    class Half(nn.Module):
        def forward(self, weight):
            return weight * 0.5
    parametrize.register_parametrization(
        case.step.attention, 'ie_weight', Half())
    case.expect_reference()


def test_parameters_that_are_not_dense(case):
    """Kernels read vectors as they lie in memory."""
    weight = case.step.attention.pair_weight
    weight.data = weight.data.t().contiguous().t()
    case.expect_reference(changed=False)


def test_accelerate(calls):
    """Its hooks set forward; the gate's gradients once were exactly 0."""
    hooks = pytest.importorskip('accelerate.hooks')
    step, norm = build(StepNet, 4)
    args = inputs((3, 4, 3, 3), torch.float32)
    wanted = run(True, step, norm, *args)
    assert len(calls) == 1
    model = nn.ModuleDict({'step': step, 'norm': norm})
    for attach in (
            lambda: hooks.add_hook_to_module(step.attention,
                                             hooks.ModelHook()),
            lambda: hooks.attach_align_device_hook(
                model, execution_device='cpu'),
            lambda: hooks.attach_align_device_hook(
                model, execution_device='cpu', offload=True,
                weights_map=model.state_dict())):
        attach()
        calls.clear()
        x, c, grad = (t.clone().requires_grad_() for t in args)
        kept = []

        def keep(t, kept=kept):
            kept.append(t)
            return t
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
            out = step(x, c, norm)
        assert not calls
        torch.testing.assert_close(out, wanted['out'])
        if all(p.device.type == 'cpu' for p in model.parameters()):
            found = torch.autograd.grad(out, step.parameters(), grad)
            for (name, _), value in zip(step.named_parameters(), found):
                torch.testing.assert_close(
                    value, wanted[f'step.{name}'], rtol=1e-4, atol=1e-5)
                assert value.abs().sum() > 0
        hooks.remove_hook_from_submodules(model)
        for bn in (norm, step.attention.bn):
            bn.reset_running_stats()


@pytest.mark.parametrize('name', ['forward', 'gate'])
def test_parts_of_the_gate(name, case):
    """The gate is more than one function."""
    gate = case.step.attention
    plain = getattr(gate, name)
    setattr(gate, name, lambda *args: plain(*args) * 0.5)
    found = case.step(*case.args[:2], case.norm)
    assert not torch.allclose(found, case.before)


def test_copies(case):
    """What is set on an object is set on its copy, and not on others."""
    case.norm.forward = lambda c: c
    twin = copy.deepcopy(case.norm)
    with steps.fused(False):
        expected = case.step(*case.args[:2], twin)
    case.calls.clear()
    assert torch.equal(case.step(*case.args[:2], twin), expected)
    assert not case.calls
