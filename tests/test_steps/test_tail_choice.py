"""When a residual step takes the fused path, and when it must not."""

import copy
from contextlib import nullcontext

import pytest
import torch
import torch.nn as nn
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
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
)
from tests.test_steps.test_frozen_gates import with_views


def test_switch(calls, monkeypatch):
    """On by default, until somebody says so."""
    monkeypatch.setattr(steps.fused, 'mode', True)
    step, norm = build(StepNet, 4)
    args = inputs((3, 4, 3, 3), torch.float32)[:2]
    with steps.fused(False):
        step(*args, norm)
        assert not calls
    step(*args, norm)
    assert len(calls) == 1
    steps.fused(False)  # as a call, from there on
    step(*args, norm)
    assert len(calls) == 1


class TestStepsAside:
    """Each case takes the reference path, and the plain one the fused."""

    @pytest.fixture(autouse=True)
    def _set_up(self, calls):
        torch.manual_seed(0)
        self.calls = calls
        self.step, self.norm = build(StepNet, 4)
        self.x, self.c, _ = inputs((3, 4, 3, 3), torch.float32)
        self.take()
        assert len(calls) == 1

    def take(self, **changes):
        args = {'x': self.x, 'c': self.c, 'norm': self.norm, **changes}
        return self.step(args['x'], args['c'], args['norm'])

    def expect_reference(self, function=None):
        self.calls.clear()
        result = (function or self.take)()
        assert not self.calls
        return result

    @pytest.mark.parametrize('norm', [
        nn.GroupNorm(2, 4), nn.InstanceNorm2d(4), IEBN(4),
        nn.BatchNorm2d(4, affine=False), nn.SyncBatchNorm(4).eval()
    ])
    def test_other_norms(self, norm):
        self.expect_reference(lambda: self.take(norm=norm))

    @pytest.mark.parametrize('norm', [
        nn.BatchNorm2d(3), nn.BatchNorm2d(1), nn.BatchNorm1d(4)])
    @pytest.mark.parametrize('training', [True, False])
    def test_norms_of_other_shapes(self, norm, training):
        """The error is PyTorch's."""
        norm.train(training)
        with pytest.raises((RuntimeError, ValueError), match='expected|shoul'):
            self.take(norm=norm)

    def test_spatial_attention(self):
        self.step.attention = CBAM(4)
        self.expect_reference()

    @pytest.mark.parametrize('inputs', ['x', 'x_next', 'difference'])
    def test_other_inputs_of_the_gate(self, inputs):
        self.step.attention = StepNet(4, inputs=inputs)
        self.expect_reference()

    def test_foreign_attention(self):
        class Foreign(nn.Module):
            def forward(self, x, f):
                return torch.sigmoid(f)

        self.step.attention = Foreign()
        self.expect_reference()

    @pytest.mark.parametrize('attention', [None, Plain(4)])
    def test_plain_block(self, attention):
        self.step.attention = attention
        expected = self.expect_reference()
        self.step = ResidualStep(attention, nn.ReLU())
        assert torch.equal(self.expect_reference(), expected)

    @pytest.mark.parametrize('bn', [
        nn.SyncBatchNorm(4).eval(), nn.Identity(), nn.LayerNorm(4)])
    def test_another_norm_in_the_gate(self, bn):
        self.step.attention.bn = bn
        self.expect_reference()

    def test_statistics_that_it_does_not_know(self):
        class Spread(ChannelGate):
            pooled = ('x_std', )

            def forward(self, x_std):
                return torch.sigmoid(x_std)

        self.step.attention = Spread(4)
        out = self.expect_reference()
        std = (self.x.var((2, 3), correction=0) + 1e-5).sqrt()
        f = copy.deepcopy(self.norm)(self.c)
        torch.testing.assert_close(
            out, (self.x + f * std.sigmoid()[..., None, None]).relu())

    @pytest.mark.parametrize('owner,name', [
        ('gate', 'ie_weight'), ('bn', 'weight'), ('bn', 'running_mean'),
        ('norm', 'bias'), ('norm', 'running_var'),
        ('norm', 'num_batches_tracked'), ('args', 'x'), ('args', 'c')])
    def test_subclasses_of_tensors(self, owner, name):
        class Logged(torch.Tensor):
            seen = []

            @classmethod
            def __torch_function__(cls, func, types, args=(), kwargs=None):
                cls.seen.append(func)
                return super().__torch_function__(func, types, args, kwargs)
        if owner == 'args':
            self.expect_reference(lambda: self.take(
                **{name: getattr(self, name).as_subclass(Logged)}))
        else:
            module = dict(gate=self.step.attention, norm=self.norm,
                          bn=self.step.attention.bn)[owner]
            tensors = (module._parameters if name in module._parameters
                       else module._buffers)
            tensors[name] = tensors[name].detach().as_subclass(Logged)
            self.expect_reference()
        assert Logged.seen

    def test_running_statistics_that_were_taken_away(self):
        """PyTorch's own BN trains on; so do adaptations at test time."""
        self.norm.running_mean = self.norm.running_var = None
        self.expect_reference()
        self.norm.track_running_stats = False
        self.take()
        assert self.calls

    def test_make_fx(self):
        """Kernels of ours are no operations that it could write down."""
        graph = self.expect_reference(
            lambda: make_fx(lambda x: self.take(x=x))(self.x))
        torch.testing.assert_close(graph(self.x), self.take())

    def test_other_activation(self):
        self.step.activation = nn.ReLU6()
        self.expect_reference()

    def test_functions_in_place_of_modules(self):
        step = ResidualStep(StepNet(4), torch.tanh, lambda r: r * 0)
        out = self.expect_reference(
            lambda: step(self.x, self.c, self.norm))
        torch.testing.assert_close(out, self.x.tanh())

    def test_active_drop_path(self):
        """Also one that would be quiet: its kind is asked alone."""
        self.step.drop_path = nn.Dropout2d(0.5)
        self.expect_reference()

    def test_other_maps(self):
        for function in (
                lambda: self.take(x=self.x.double(), c=self.c),
                lambda: self.take(x=self.x[:1], c=self.c),
                lambda: self.take(x=self.x[:0], c=self.c[:0],
                                  norm=self.norm.eval())):
            self.step.eval()
            self.expect_reference(function)

    def test_too_few_values(self):
        with pytest.raises(ValueError, match='more than 1 value'):
            self.take(x=self.x[:1, :, :1, :1], c=self.c[:1, :, :1, :1])
        with pytest.raises(ValueError, match='at least 2 images'):
            self.take(x=self.x[:1], c=self.c[:1])

    def test_functorch(self):
        self.step.eval()
        self.norm.eval()
        _, tangent = self.expect_reference(lambda: torch.func.jvp(
            lambda x: self.take(x=x), (self.x, ), (self.c, )))
        numeric = (self.take(x=self.x + 1e-3 * self.c).double() -
                   self.take(x=self.x - 1e-3 * self.c)) / 2e-3
        torch.testing.assert_close(
            tangent.double(), numeric, rtol=0.05, atol=0.05)
        grads = self.expect_reference(
            lambda: torch.func.grad(lambda x: self.take(x=x).sum())(self.x))
        x = self.x.clone().requires_grad_()
        self.take(x=x).sum().backward()
        torch.testing.assert_close(grads, x.grad, rtol=1e-4, atol=1e-5)
        self.expect_reference(lambda: torch.func.vmap(lambda x: self.take(
            x=x))(self.x[None]))

    def test_forward_mode(self):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(self.x, torch.ones_like(self.x))
            out = self.expect_reference(lambda: self.take(x=dual))
            assert forward_ad.unpack_dual(out).tangent is not None


@pytest.mark.parametrize('whose', ['gate', 'norm'])
def test_views_of_fsdp_get_their_gradients(whose, calls):
    step, norm = build_modes('batch', 'batch')
    x, c, grad = inputs((3, 6, 5, 4))
    wanted = run(False, step, norm, x, c, grad)
    module, prefix = dict(gate=(step.attention, 'step.attention.'),
                          norm=(norm, 'norm.'))[whose]
    names = [prefix + name for name, _ in module.named_parameters()]
    flat = with_views(module, True)
    step(x, c, norm).backward(grad)
    torch.testing.assert_close(
        flat.grad, torch.cat([wanted[name].flatten() for name in names]))
    assert len(calls) == 1


def test_replicas_of_data_parallel(calls):
    """They hold plain tensors; copied here as nn.parallel.replicate
    does, which works on GPUs alone."""
    step, norm = build_modes('batch', 'batch')
    args = inputs((3, 6, 5, 4))
    wanted = run(False, step, norm, *args)
    replica = copy.copy(step)
    replica._modules = dict(step._modules)
    first = step.attention
    gate = replica.attention = first._replicate_for_data_parallel()
    gate._modules = {}
    gate.bn = first.bn._replicate_for_data_parallel()
    for module, own in ((gate, first), (gate.bn, first.bn)):
        module._parameters = {}
        for name, parameter in own.named_parameters(recurse=False):
            setattr(module, name, parameter.clone())
    replica(*args[:2], norm).backward(args[2])
    for name, parameter in step.named_parameters():
        torch.testing.assert_close(parameter.grad, wanted[f'step.{name}'])
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


def test_a_mode_does_not_change_the_path(calls):
    """Which a checkpoint takes again without the mode."""
    step, norm = build_modes('batch', 'batch')
    x, c, _ = inputs((3, 6, 5, 4))

    class Silent(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))
    outs = []
    for mode in (nullcontext(), Silent(), torch.device('cpu')):
        with mode:
            outs.append(step(x, c, norm))
    assert len(calls) == 3
    assert torch.equal(outs[0], outs[1]) and torch.equal(outs[0], outs[2])
