"""The fused residual step against the reference path, and when it is taken."""

import copy
import gc
import itertools
import weakref

import pytest
import torch
import torch.nn as nn
from torch.autograd import forward_ad, gradcheck, gradgradcheck

from mmstepnet import steps
from mmstepnet.attentions import CBAM, IEBN, SE, SEM, SRM, StepNet
from mmstepnet.models import ResidualStep
from mmstepnet.models import residual as residual_module
from mmstepnet.models.backbones.blocks import StepBasicBlock, StepBottleneck
from mmstepnet.steps.kernels import aten

FORMATS = (torch.contiguous_format, torch.channels_last)


def randomise(*modules):
    for module in modules:
        for parameter in module.parameters():
            nn.init.normal_(parameter)
        for name, buffer in module.named_buffers():
            if name.endswith('running_mean'):
                buffer.normal_()
            elif name.endswith('running_var'):
                buffer.uniform_(0.5, 2)


@pytest.fixture
def calls(monkeypatch):
    """Count the calls that took the fused path."""
    count = []
    fused = residual_module.fused_residual_step

    def spy(*args, **kwargs):
        count.append(1)
        return fused(*args, **kwargs)

    monkeypatch.setattr(residual_module, 'fused_residual_step', spy)
    return count


def build(attention, channels, relu=True, norm=True, **norm_args):
    step = ResidualStep(
        attention(channels), nn.ReLU(inplace=True) if relu else None)
    norm = nn.BatchNorm2d(channels, **norm_args) if norm else None
    randomise(*[m for m in (step, norm) if m is not None])
    return step, norm


def inputs(shape, dtype=torch.float64, memory_format=FORMATS[0], mean=1.0):
    x, c, g = (torch.randn(shape, dtype=torch.float64) for _ in range(3))
    # Images differ in their means, as real ones do. A BN over nearly equal
    # pooled values would amplify rounding, in either path.
    x, c = (t + torch.randn(shape[:2], dtype=torch.float64)[..., None, None]
            for t in (x, c))
    return [
        t.to(dtype).contiguous(memory_format=memory_format)
        for t in (x, 2 * c + mean, g)
    ]


def away_from_kink(step, norm, x, c, grad, margin):
    """Drop the gradient where rounding decides on which side of 0 we are."""
    step, norm = copy.deepcopy((step, norm))
    step.activation = nn.Identity()
    for module in (step, norm):
        if module is not None:
            module.double()
    with steps.fused(False), torch.no_grad():
        total = step(x.double(), c.double(), norm)
    return grad * (total.abs() > margin * total.abs().mean()).to(grad)


def run(fused, step, norm, x, c, grad, dtype=None):
    """Outputs, all gradients and all buffers of one pass."""
    step, norm = copy.deepcopy((step, norm))
    modules = nn.ModuleDict({'step': step})
    if norm is not None:
        modules['norm'] = norm
    if dtype is not None:
        modules.to(dtype)
        x, c, grad = (t.to(dtype) for t in (x, c, grad))
    x, c = (t.clone().requires_grad_() for t in (x, c))
    with steps.fused(fused):
        out = step(x, c, norm)
    out.backward(grad)
    return {
        'out': out.detach(), 'x': x.grad, 'c': c.grad,
        **{k: p.grad for k, p in modules.named_parameters()},
        **dict(modules.named_buffers())
    }


def worst(got, expected):
    """Largest error of an entry, relative to its norm, and its name."""
    assert got.keys() == expected.keys()
    errors = {
        k: ((got[k].double() - v.double()).norm() /
            v.double().norm().clamp(min=1e-12)).item()
        for k, v in expected.items()
    }
    name = max(errors, key=errors.get)
    return errors[name], name


@pytest.mark.parametrize('attention', [StepNet, SE, SRM, SEM])
@pytest.mark.parametrize('training', [True, False])
@pytest.mark.parametrize('memory_format', FORMATS)
@pytest.mark.parametrize('relu,norm', [(True, True), (False, False)])
def test_equals_reference_in_float64(attention, training, memory_format, relu,
                                     norm, calls):
    torch.manual_seed(0)
    step, norm = build(attention, 6, relu, norm)
    for module in (step, norm):
        if module is not None:
            module.double().train(training)
    for shape in ((2, 6, 7, 5), (5, 6, 3, 3), (64, 6, 1, 2)):
        args = inputs(shape, memory_format=memory_format)
        error, name = worst(
            run(True, step, norm, *args), run(False, step, norm, *args))
        assert error < 1e-10, (shape, name)
    assert len(calls) == 3


def test_one_image_in_eval(calls):
    torch.manual_seed(0)
    step, norm = build(StepNet, 5)
    step.double().eval()
    norm.double()
    for norm_training in (True, False):
        norm.train(norm_training)
        args = inputs((1, 5, 9, 4))
        error, name = worst(
            run(True, step, norm, *args), run(False, step, norm, *args))
        assert error < 1e-10, name
    assert len(calls) == 2


def test_blocks_of_a_map_are_joined(monkeypatch):
    """Maps larger than a block, in rows that do not divide it."""
    monkeypatch.setattr(aten, 'BLOCK', 37)
    torch.manual_seed(0)
    step, norm = build(SRM, 5)
    step.double()
    norm.double()
    for memory_format in FORMATS:
        args = inputs((3, 5, 7, 6), memory_format=memory_format)
        error, name = worst(
            run(True, step, norm, *args), run(False, step, norm, *args))
        assert error < 1e-10, name


@pytest.mark.parametrize('memory_format', FORMATS)
@pytest.mark.parametrize('dtype,tolerance', [(torch.float32, 1e-5),
                                             (torch.bfloat16, 2e-2)])
def test_equals_exact_in_low_precision(dtype, tolerance, memory_format):
    """Against the reference in float64, on the same rounded inputs."""
    torch.manual_seed(1)
    shapes = (4, 16, 9, 7), (8, 16, 14, 14)
    for attention, shape in itertools.product((StepNet, SE), shapes):
        step, norm = build(attention, 16)
        x, c, grad = inputs(shape, dtype, memory_format)
        margin = 1e-4 if dtype == torch.float32 else 0.1
        grad = away_from_kink(step, norm, x, c, grad, margin)
        exact = run(False, step, norm, x, c, grad, torch.float64)
        got = run(True, step, norm, x, c, grad)
        error, name = worst(got, exact)
        assert error < tolerance, (attention, shape, name)
        assert got['out'].dtype == dtype


@pytest.mark.parametrize('memory_format', FORMATS)
def test_large_channel_means(memory_format):
    """E[c^2] - E[c]^2 would keep two digits at a mean of 500 deviations."""
    torch.manual_seed(0)
    step, norm = build(SE, 8)
    x, c, grad = inputs((4, 8, 12, 12), torch.float32, memory_format, 0.0)
    c = c + torch.logspace(0, 3, 8)[:, None, None]
    grad = away_from_kink(step, norm, x, c, grad, 0.05)
    exact = run(False, step, norm, x, c, grad, torch.float64)
    got = run(True, step, norm, x, c, grad)
    assert worst({'v': got['norm.running_var']},
                 {'v': exact['norm.running_var']})[0] < 1e-5
    # float32 holds the mean itself to 500 eps = 6e-5 deviations.
    error, name = worst(got, exact)
    assert error < 1e-4, name


@pytest.mark.parametrize('momentum', [0.1, 0.3, None])
def test_running_statistics(momentum):
    torch.manual_seed(0)
    step, norm = build(SE, 4, momentum=momentum)
    ends, norms = {}, {}
    for fused in (True, False):
        ends[fused], norms[fused] = copy.deepcopy((step, norm))
        norms[fused].double()
        ends[fused].double()
    for _ in range(3):
        x, c, _ = inputs((2, 4, 3, 5))
        for fused in (True, False):
            with steps.fused(fused):
                ends[fused](x, c, norms[fused])
    for a, b in zip(norms[True].buffers(), norms[False].buffers()):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    assert norms[True].num_batches_tracked == 3


def test_norm_without_running_statistics(calls):
    torch.manual_seed(0)
    step, norm = build(SE, 4, track_running_stats=False)
    step.double()
    norm.double().eval()
    args = inputs((2, 4, 3, 5))
    error, name = worst(
        run(True, step, norm, *args), run(False, step, norm, *args))
    assert error < 1e-10, name
    assert calls


@pytest.mark.parametrize('block', [StepBasicBlock, StepBottleneck])
@pytest.mark.parametrize('memory_format', FORMATS)
@pytest.mark.parametrize('with_cp', [False, True])
def test_three_optimizer_steps(block, memory_format, with_cp, calls):
    torch.manual_seed(0)
    template = block(16, 16, with_cp=with_cp)
    template.step.attention = StepNet(16)
    randomise(template)
    template.double().to(memory_format=memory_format)
    data = [
        inputs((3, 16, 9, 9), memory_format=memory_format)
        for _ in range(3)
    ]
    states = {}
    for fused in (True, False):
        model = copy.deepcopy(template).train()
        optimizer = torch.optim.SGD(
            model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
        with steps.fused(fused):
            for x, target, _ in data:
                loss = (model(x.requires_grad_()) - target).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        states[fused] = model.state_dict()
    error, name = worst(states[True], states[False])
    assert error < 1e-10, name
    assert calls
    assert worst(states[True], template.state_dict())[0] > 1e-3  # it learned


@pytest.mark.parametrize('attention', [StepNet, SE, SRM])
@pytest.mark.parametrize('training,relu', [(True, True), (True, False),
                                           (False, True)])
def test_derivatives_of_both_orders(attention, training, relu, calls):
    torch.manual_seed(0)
    step, norm = build(attention, 2, relu)
    modules = nn.ModuleList([step, norm]).double().train(training)
    names = [name for name, _ in modules.named_parameters()]
    for name, buffer in modules.named_buffers():
        if 'running' in name and training:
            buffer.requires_grad_(False)

    def function(x, c, *parameters):
        values = dict(zip(names, parameters))
        with torch.nn.utils.stateless._reparametrize_module(modules, values):
            return step(x, c, norm)

    args = [t.requires_grad_() for t in inputs((3, 2, 2, 2))[:2]]
    args += list(modules.parameters())
    assert gradcheck(function, args)
    assert gradgradcheck(function, args)
    assert calls


@pytest.mark.parametrize('training', [False, True])
def test_second_order_through_a_checkpoint(training, calls):
    """Which lets saved tensors be looked at once."""
    found = []
    for fused, with_cp in itertools.product([False, True], repeat=2):
        torch.manual_seed(0)
        block = StepBasicBlock(6, 6, with_cp=with_cp).double()
        block.step.attention = SRM(6).double()  # means and deviations
        randomise(block)
        block.train(training)
        x = torch.randn(3, 6, 5, 4, dtype=torch.float64, requires_grad=True)
        with steps.fused(fused):
            grad, = torch.autograd.grad(
                block(x).square().sum(), x, create_graph=True)
            grad.square().sum().backward()
        found.append([x.grad, *(p.grad for p in block.parameters())])
    assert calls
    for other in found[1:]:
        torch.testing.assert_close(other, found[0])


def test_a_gradient_of_the_gate_alone_leaves_nothing_behind():
    """No cycle of nodes, which nothing would ever collect."""
    class Kept:

        def __init__(self, tensor):
            self.tensor = tensor
    kept = []

    def pack(tensor):
        packed = Kept(tensor.detach())
        kept.append(weakref.ref(packed))
        return packed
    step, norm = build(StepNet, 6)
    x, c, _ = inputs((3, 6, 5, 4), torch.float32)
    with torch.autograd.graph.saved_tensors_hooks(
            pack, lambda packed: packed.tensor):
        out = step(x.requires_grad_(), c.requires_grad_(), norm)
    gates = list(step.attention.parameters())
    assert all(g.abs().sum() > 0 for g in torch.autograd.grad(
        out.square().sum(), gates))
    assert any(ref() for ref in kept)
    del out
    gc.collect()
    assert not any(ref() for ref in kept)


def test_no_reentrant_surprises():
    """Retained graphs, partial gradients, a state that needs no gradient."""
    torch.manual_seed(0)
    step, norm = build(StepNet, 4)
    step.double()
    norm.double()
    x, c, grad = inputs((2, 4, 3, 3))
    for needs_x, needs_c in ((True, True), (False, True), (True, False),
                             (False, False)):
        results = []
        for fused in (True, False):
            a = x.clone().requires_grad_(needs_x)
            b = c.clone().requires_grad_(needs_c)
            with steps.fused(fused):
                out = step(a, b, norm)
            wanted = [t for t in (a, b) if t.requires_grad]
            wanted += [norm.weight, step.attention.pair_weight]
            first = torch.autograd.grad(out, wanted[-1:], grad,
                                        retain_graph=True)
            again = [torch.autograd.grad(out, wanted, grad, retain_graph=True)
                     for _ in range(2)]
            for u, v in zip(*again):
                assert torch.equal(u, v)
            torch.testing.assert_close(first[0], again[0][-1])
            results.append(again[0])
        for u, v in zip(*results):
            torch.testing.assert_close(u, v, rtol=1e-10, atol=1e-12)


def test_frozen_norm_and_attention(calls):
    """As in detection: norm_eval and the weights of the norms frozen."""
    torch.manual_seed(0)
    step, norm = build(StepNet, 4)
    step.double().eval().requires_grad_(False)
    norm.double().eval().requires_grad_(False)
    args = inputs((2, 4, 3, 5))
    got, expected = (run(fused, step, norm, *args) for fused in (True, False))
    for key in ('out', 'x', 'c'):
        torch.testing.assert_close(got[key], expected[key], rtol=1e-10,
                                   atol=1e-12)
    assert got['norm.weight'] is None
    assert torch.equal(got['norm.running_mean'], norm.running_mean)
    assert len(calls) == 1


def test_gradient_of_the_result_is_left_alone():
    step, norm = build(SE, 4, relu=False)
    x, c, grad = inputs((2, 4, 3, 3), torch.float32)
    before = grad.clone()
    step(x.requires_grad_(), c.requires_grad_(), norm).backward(grad)
    assert torch.equal(grad, before)


def test_saves_one_map_and_the_result():
    step, norm = build(StepNet, 8)
    x, c, _ = inputs((4, 8, 32, 32), torch.float32)

    def saved(function):
        total = []

        def pack(t):
            if not isinstance(t, nn.Parameter):
                total.append(t.numel() * t.element_size())
            return t

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            function(x.clone().requires_grad_() * 1,
                     c.clone().requires_grad_() * 1)
        return sum(total)

    plain = saved(lambda x, c: torch.relu_(norm(c).add_(x)))
    fused = saved(lambda x, c: step(x, c, norm))
    coefficients = 40 * 4 * 8 * 4  # 40 tensors of (N, C)
    assert plain <= fused <= plain + coefficients


def test_autocast(calls):
    torch.manual_seed(0)
    for attention in (StepNet, SE):
        step, norm = build(attention, 8)
        x, c, grad = inputs((4, 8, 6, 6), torch.bfloat16)
        grad = away_from_kink(step, norm, x, c, grad, 0.1)
        with torch.autocast('cpu', torch.bfloat16):
            got = run(True, step, norm, x, c, grad)
            exact = run(False, step, norm, x, c, grad)
        assert got['out'].dtype == torch.bfloat16
        assert worst({'o': got['out']}, {'o': exact['out']})[0] < 2e-2
        assert worst({'o': got['c']}, {'o': exact['c']})[0] < 5e-2
        assert got['norm.weight'].dtype == torch.float32
    assert len(calls) == 2


def test_mixed_memory_formats(calls):
    torch.manual_seed(0)
    step, norm = build(StepNet, 6)
    step.double()
    norm.double()
    x, c, grad = inputs((2, 6, 4, 5))
    expected = run(False, step, norm, x, c, grad)
    last = [t.contiguous(memory_format=FORMATS[1]) for t in (x, c, grad)]
    strided = torch.zeros(2, 6, 8, 5).double()[:, :, ::2].copy_(c)
    for args in ((last[0], c, grad), (x, last[1], grad), (x, c, last[2]),
                 (x, strided, grad)):
        error, name = worst(run(True, step, norm, *args), expected)
        assert error < 1e-10, name


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

    def test_plain_block(self):
        self.step.attention = None
        self.expect_reference(self.take)

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
