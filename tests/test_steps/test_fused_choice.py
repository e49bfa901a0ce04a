"""When a residual step takes the fused path, and when it must not."""

import copy

import pytest
import torch
import torch.nn as nn
import torch.utils.checkpoint as cp
from torch.autograd import forward_ad
from torch.utils.flop_counter import FlopCounterMode

from mmstepnet import steps
from mmstepnet.attentions import CBAM, IEBN, ChannelGate, Plain, StepNet
from mmstepnet.steps import choice
from mmstepnet.steps.compiled import Compiled
from mmstepnet.torch_version import is_checkpointing
from tests.test_steps.cases import build, inputs


class TestStepsAside:
    """Each case takes the reference path, and the plain one the fused."""

    @pytest.fixture(autouse=True)
    def _set_up(self, calls):
        torch.manual_seed(0)
        self.calls = calls
        self.step, self.norm = build(StepNet, 4)
        self.x, self.c, _ = inputs((2, 4, 3, 3), torch.float32)
        self.take()
        assert len(calls) == 1

    def take(self, **changes):
        args = {'x': self.x, 'c': self.c, 'norm': self.norm, **changes}
        return self.step(args['x'], args['c'], args['norm'])

    def expect_reference(self, function):
        self.calls.clear()
        result = function()
        assert not self.calls
        return result

    def test_switch(self):
        with steps.fused(False):
            assert not steps.is_fused()
            self.expect_reference(self.take)
        assert steps.is_fused()
        steps.fused(False)
        try:
            self.expect_reference(self.take)
        finally:
            steps.fused(True)

    @pytest.mark.parametrize('norm', [
        nn.GroupNorm(2, 4), nn.InstanceNorm2d(4), IEBN(4),
        nn.BatchNorm2d(4, affine=False)
    ])
    def test_other_norms(self, norm):
        self.expect_reference(lambda: self.take(norm=norm))

    def test_sync_bn(self):
        norm = nn.SyncBatchNorm(4).eval()
        self.expect_reference(lambda: self.take(norm=norm))

    def test_spatial_attention(self):
        self.step.attention = CBAM(4)
        self.expect_reference(self.take)

    def test_foreign_attention(self):
        class Foreign(nn.Module):
            def forward(self, x, f):
                return torch.sigmoid(f)

        self.step.attention = Foreign()
        self.expect_reference(self.take)

    @pytest.mark.parametrize('attention', [None, Plain(4)])
    def test_plain_block(self, attention):
        self.step.attention = attention
        self.expect_reference(self.take)

    def test_a_gate_that_synchronises_over_ranks(self):
        self.step.attention.bn = nn.SyncBatchNorm(4).eval()
        self.expect_reference(self.take)

    def test_statistics_that_it_does_not_know(self):
        class Spread(ChannelGate):
            pooled = ('x_std', )

            def forward(self, x_std):
                return torch.sigmoid(x_std)

        self.step.attention = Spread(4)
        out = self.expect_reference(self.take)
        std = (self.x.var((2, 3), correction=0) + 1e-5).sqrt()
        f = copy.deepcopy(self.norm)(self.c)
        torch.testing.assert_close(
            out, (self.x + f * std.sigmoid()[..., None, None]).relu())

    def test_observer(self):
        seen = []
        handle = self.step.observe(lambda *args: seen.append(args[2]))
        self.expect_reference(self.take)
        torch.testing.assert_close(
            seen[0], copy.deepcopy(self.norm)(self.c))
        handle.remove()
        self.take()
        assert self.calls

    @pytest.mark.parametrize('kind', [
        'register_forward_hook', 'register_forward_pre_hook',
        'register_full_backward_hook', 'register_full_backward_pre_hook'
    ])
    def test_module_hooks(self, kind):
        self.step.activation = nn.ReLU()  # PyTorch refuses them in place
        for module in (self.norm, self.step.attention, self.step.attention.bn,
                       self.step.activation):
            handle = getattr(module, kind)(lambda *args: None)
            self.expect_reference(self.take)
            handle.remove()

    def test_global_hook(self):
        handle = nn.modules.module.register_module_forward_hook(
            lambda *args: None)
        try:
            self.expect_reference(self.take)
        finally:
            handle.remove()

    def test_where_it_would_be_slower(self, monkeypatch):
        monkeypatch.setattr(choice, 'SMALLEST', self.c.numel() + 1)
        self.expect_reference(self.take)
        monkeypatch.setattr(choice, 'SMALLEST_WARM', self.c.numel())
        monkeypatch.setattr(Compiled, 'warm', False)
        self.expect_reference(self.take)
        monkeypatch.setattr(Compiled, 'warm', True)  # at no further cost
        self.take()
        assert bool(self.calls) is not is_checkpointing()  # torch < 2.8: it is
        # No CPU, and no kernels for it.
        assert not choice._pays(torch.empty(1 << 20, device='meta'))

    def test_a_checkpoint_runs_twice_alike(self, monkeypatch):
        """Also where larger maps were compiled for between its runs."""
        monkeypatch.setattr(choice, 'SMALLEST', self.c.numel() + 1)
        monkeypatch.setattr(choice, 'SMALLEST_WARM', self.c.numel())
        monkeypatch.setattr(Compiled, 'warm', False)
        c = self.c.requires_grad_()
        out = cp.checkpoint(self.step, self.x, c, self.norm,
                            use_reentrant=False)
        expected = self.take()
        monkeypatch.setattr(Compiled, 'warm', True)
        torch.testing.assert_close(
            torch.autograd.grad(out.square().sum(), c),
            torch.autograd.grad(expected.square().sum(), c), rtol=0, atol=0)

    def test_a_gate_that_is_no_function(self):
        """The backward calls it once more."""
        class Forgetful(StepNet):

            def __init__(self, channels):
                super().__init__(channels)
                self.dropout = nn.Dropout(0.5)
                self.register_buffer('calls', torch.zeros(()))

        gate = self.step.attention = Forgetful(4)
        self.expect_reference(self.take)
        del gate.dropout
        self.expect_reference(self.take)
        gate.eval()
        self.take()
        assert self.calls

    @pytest.mark.parametrize('names', [('ie_weight', ), ('bn', 'weight')])
    def test_tensors_that_are_no_parameters(self, names):
        """As FSDP's views of its flat parameter; they get their gradients."""
        *path, name = names
        module = self.step.attention.get_submodule('.'.join(path))
        value = module._parameters.pop(name)
        flat = value.detach().clone().requires_grad_()
        setattr(module, name, flat.view_as(flat))
        self.expect_reference(self.take).square().sum().backward()
        assert flat.grad.abs().sum() > 0

    def test_replicas_of_data_parallel(self):
        """They hold plain tensors; copied here as nn.parallel.replicate
        does, which works on GPUs alone."""
        replica = copy.copy(self.step)
        replica._modules = dict(self.step._modules)
        first = self.step.attention
        gate = replica.attention = first._replicate_for_data_parallel()
        gate._modules = {}
        gate.bn = first.bn._replicate_for_data_parallel()
        for module, own in ((gate, first), (gate.bn, first.bn)):
            module._parameters = {}
            for name, parameter in own.named_parameters(recurse=False):
                setattr(module, name, parameter.view_as(parameter))
        self.step = replica
        self.expect_reference(self.take).square().sum().backward()
        assert all(p.grad is not None for p in first.parameters())

    def test_running_statistics_that_were_taken_away(self):
        """PyTorch's own BN trains on; so do adaptations at test time."""
        self.norm.running_mean = self.norm.running_var = None
        self.expect_reference(self.take)
        self.norm.track_running_stats = False
        self.take()
        assert self.calls

    def test_somebody_who_wants_to_see_operations(self):
        with FlopCounterMode(display=False):
            self.expect_reference(self.take)

    def test_other_activation(self):
        self.step.activation = nn.ReLU6()
        self.expect_reference(self.take)

    def test_active_drop_path(self):
        self.step.drop_path = nn.Dropout2d(0.5)
        self.expect_reference(self.take)
        self.step.drop_path.eval()
        self.take()
        assert self.calls

    def test_other_inputs(self):
        self.expect_reference(
            lambda: self.take(x=self.x.double(), c=self.c))
        self.expect_reference(lambda: self.take(x=self.x[:1], c=self.c))

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

    def test_tracing_and_export(self):
        self.step.eval()
        self.norm.eval()

        class Whole(nn.Module):
            def __init__(self, step, norm):
                super().__init__()
                self.step, self.norm = step, norm

            def forward(self, x, c):
                return self.step(x, c, self.norm)

        model = Whole(self.step, self.norm)
        expected = model(self.x, self.c)
        args = (self.x, self.c)
        traced = self.expect_reference(lambda: torch.jit.trace(
            model, args, check_trace=False))
        exported = self.expect_reference(
            lambda: torch.export.export(model, args)).module()
        for other in (traced, exported):
            torch.testing.assert_close(other(*args), expected)

    def test_compile(self):
        torch.compiler.reset()
        self.step.eval()
        self.norm.eval()
        expected = self.take()
        compiled = torch.compile(self.step, backend='eager', fullgraph=True)
        out = self.expect_reference(
            lambda: compiled(self.x, self.c, self.norm))
        torch.testing.assert_close(out, expected)
