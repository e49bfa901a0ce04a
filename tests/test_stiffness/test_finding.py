"""The rules by which a step is found, each on networks written for it."""

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

from mmstepnet import find_steps
from mmstepnet.stiffness import TrajectoryRecorder
from tests.test_stiffness.written_blocks import (
    Block,
    X,
    assert_ratio,
    build,
    record,
    size,
)
from tests.utils import perturb


def grn(block, x):
    return x + x * (x.norm(dim=1, keepdim=True) / 3)


@pytest.mark.parametrize('code', [
    grn,
    lambda block, x: x + torch.sin(3 * x)**2 / 3,  # Snake
    lambda block, x: 0.5 * x * (1 + torch.tanh(x + 0.04 * x**3)),  # GELU
    lambda block, x: x + (F.embedding(
        block.a(x).argmax(-1), block.b.weight) - x).detach(),
    lambda block, x: x + torch.randn_like(block.a(x)),
    lambda block, x: x + (block.a(x) > 0).to(x.dtype),
    lambda block, x: x + torch.zeros_like(block.a(x)),
    lambda block, x: block.a(x) + block.b(x),
    lambda block, x: x + block.a.weight.sum(),
])
def test_a_branch_has_passed_a_contraction(code):
    steps = find_steps(build(code), X)
    assert [s for s in steps if s.left_out is None] == []
    # The same with a contraction on the way is one.
    steps = find_steps(build(lambda block, x: code(block, x) + block.c(x)), X)
    assert all(s.owner == s.name for s in steps)


@pytest.mark.parametrize('code', [
    lambda block, x: x + block.a(x) + block.b(x),
    lambda block, x: block.a(x) + block.b(x) + x,
    lambda block, x: x + (block.a(x) + block.b(x)),
])
def test_parallel_branches_are_one_step(code):
    model, recorder = record(code)
    assert_ratio(recorder, model, X, lambda block, x: block.a(x) + block.b(x))


def test_serial_branches_are_two_steps():
    def code(block, x):
        x = x + block.a(x)
        return x + block.b(x)

    model, recorder = record(code)
    assert recorder.blocks == [
        f'{k}.{s}' for k in (1, 2) for s in ('attn_step', 'mlp_step')]
    with torch.no_grad():
        x = model[0](X)
        y = x + model[1].a(x)
        expected = torch.stack([size(model[1].a(x)) / size(x),
                                size(model[1].b(y)) / size(y)], 1)
    torch.testing.assert_close(
        recorder.nsi[:, :2].double(), expected, rtol=1e-5, atol=0)


def heun(block, x):
    first = block.a(x)
    second = block.a(x + first)
    return x + (first + second) / 2


def test_a_stage_of_a_runge_kutta_method_is_no_step():
    model, recorder = record(heun)
    assert_ratio(recorder, model, X, lambda block, x: (
        block.a(x) + block.a(x + block.a(x))) / 2)
    reasons = {s.left_out for s in recorder.steps if s.ordinals == (0, )}
    assert reasons == {'an operand of it goes on as a later state'}


class Queries(nn.Module):
    """A decoder's layer as in DETR: its queries get positions each time."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, states, positions):
        query = states + positions
        return states + self.a(query) * torch.sigmoid(self.b(states))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Queries() for _ in range(3)])

    def forward(self, x):
        states, positions = x, x.flip(1)
        for layer in self.layers:
            states = layer(states, positions=positions)
        return states


def test_queries_with_positions_are_no_steps():
    model = perturb(Decoder())
    steps = find_steps(model, X)
    recorded = [s for s in steps if not s.left_out]
    assert [s.name for s in recorded] == ['layers.1', 'layers.2']
    assert all(s.ordinals == (1, ) for s in recorded)


class InLists(nn.Module):
    """States in a list, with something else beside them."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 8)

    def forward(self, states):
        x, other = states[-1]
        return [*states, (x + self.a(x), other)]


def test_states_in_lists_and_tuples():
    class Net(nn.Sequential):
        def forward(self, x):
            return super().forward([(x, torch.ones(()))])[-1][0]

    model = perturb(Net(*[InLists() for _ in range(3)]))
    with TrajectoryRecorder(model) as recorder, torch.no_grad():
        model(X)
    assert recorder.blocks == ['1', '2'] and recorder.nsi.min() > 0


@pytest.mark.parametrize('same', [
    lambda x: x.clone(),
    lambda x: x.double().float(),
    lambda x: 2 * (x / 2),
    lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    lambda x: x.detach().view(-1).view_as(x),
])
def test_a_copy_of_a_state_is_that_state(same):
    model, recorder = record(lambda block, x: same(x) + block.a(x))
    assert_ratio(recorder, model, X, lambda block, x: block.a(x))


def test_slices_of_one_memory_are_different_states():
    """As Res2Net adds them."""
    def code(block, x):
        head, tail = x.split(4, 2)
        tail = tail + block.a(x)[..., :4]
        return x + block.b(torch.cat([head, tail], 2))

    model, recorder = record(code)

    def branch(block, x):
        head, tail = x.split(4, 2)
        return block.b(torch.cat([head, tail + block.a(x)[..., :4]], 2))

    assert_ratio(recorder, model, X, branch)


@pytest.mark.parametrize('batch', [1, 2])
def test_a_slice_of_what_the_block_was_given_is_a_state(batch):
    """As dual path networks add to it; the other slice goes on as it is."""
    def branch(block, x):
        return block.b(torch.relu(block.a(x)))[..., :5]

    def code(block, x):
        return torch.cat([x[..., :5] + branch(block, x), x[..., 5:]], 2)

    x = X[:batch]
    model, recorder = record(code, x)
    assert recorder.blocks == ['1', '2']
    assert recorder.steps[1].shape == (batch, 6, 5)
    with torch.no_grad():
        x = model[0](x)
        expected = size(branch(model[1], x)) / size(x[..., :5])
    torch.testing.assert_close(
        recorder.nsi[:, 0].double(), expected, rtol=1e-5, atol=0)


def test_a_norm_of_a_state_is_one():
    """Post-norm, where what follows the norm is given to nobody as it is."""
    def code(block, x):
        x = block.norm(x + block.a(x))
        return x + block.b(x * 1.5 + 1)

    model, recorder = record(code)
    assert len(recorder.blocks) == 4
    with torch.no_grad():
        x = model[0](X)
        y = model[1].norm(x + model[1].a(x))
    torch.testing.assert_close(
        recorder.record['returned'][:, 0].double(), size(y - x) / size(x),
        rtol=1e-5, atol=0)


@pytest.mark.parametrize('code, branch', [
    (lambda b, x: x.add(b.a(x), alpha=0.5), lambda b, x: 0.5 * b.a(x)),
    (lambda b, x: x - b.a(x), lambda b, x: b.a(x)),
    (lambda b, x: x.lerp(b.a(x), 0.25), lambda b, x: (b.a(x) - x) / 4),
    (lambda b, x: x.addcmul(b.a(x), b.b(x)), lambda b, x: b.a(x) * b.b(x)),
    (lambda b, x: torch.baddbmm(x, x, b.a.weight.expand(2, 8, 8)),
     lambda b, x: x @ b.a.weight),
    (lambda b, x: b.a(x).add_(x), lambda b, x: b.a(x)),
    (lambda b, x: x.clone().add_(b.a(x)).relu_(), lambda b, x: b.a(x)),
    (lambda b, x: torch.add(b.a(x), x, alpha=1), lambda b, x: b.a(x)),
])
def test_every_way_to_add(code, branch):
    model, recorder = record(code)
    assert_ratio(recorder, model, X, branch)


@pytest.mark.parametrize('reading', ['unit', 'returned'])
def test_a_state_that_is_overwritten(reading):
    def code(block, x):
        x = x.clone()
        x += block.a(x)
        return x.relu_()

    model, recorder = record(code)
    change = (lambda b, x: b.a(x)) if reading == 'unit' else (
        lambda b, x: (x + b.a(x)).clamp(min=0) - x)
    assert_ratio(recorder, model, X, change, reading)


class Add(nn.Module):
    def forward(self, x, f):
        return x + f


def test_a_module_without_weights_adds_for_its_caller():
    class Calling(Block):
        def __init__(self):
            super().__init__(lambda block, x: block.add(x, block.a(x)))
            self.add = Add()

    model = perturb(nn.Sequential(*[Calling() for _ in range(3)]))
    steps = find_steps(model, X)
    assert [(s.name, s.owner) for s in steps if not s.left_out] == [
        ('1', '1'), ('2', '2')]


class PoolsAndAdds(nn.Module):
    def forward(self, x):
        return x + F.avg_pool1d(x, 3, 1, 1)


def test_a_module_without_weights_that_adds_by_itself_is_no_block():
    model = nn.Sequential(*[PoolsAndAdds() for _ in range(3)])
    with TrajectoryRecorder(model), pytest.raises(
            ValueError, match='module that adds has no weights'):
        model(X)


def test_memory_that_is_used_again_inherits_nothing():
    """The branch is freed and its address given to something else."""
    def code(block, x):
        for _ in range(20):
            block.a(x)  # freed at once
            y = torch.full_like(x, 0.5)  # where it was
            out = x.clone() + y
        return out

    assert find_steps(build(code), X) == []


def test_what_find_steps_tells():
    model = build(lambda b, x: x + b.a(x) * torch.sigmoid(
        b.c(x).mean((2, 3), keepdim=True)), maps=True)
    model.insert(0, nn.Conv2d(3, 8, 3))
    images = torch.randn(2, 3, 9, 7)
    model.train()
    state = {k: v.clone() for k, v in model.state_dict().items()}
    first, second, third = find_steps(model, images)
    assert all(torch.equal(v, state[k])
               for k, v in model.state_dict().items())
    assert all(m.training for m in model.modules())
    assert first.left_out == 'first of its stage' and first.name == '1'
    assert second.name == second.block == second.owner == '2'
    assert second.stage == '' and second.ordinals == (0, )
    assert second.gate == (2, 8, 1, 1) and third.left_out is None
    assert str(second) == ('2: (2, 8, 7, 5), gate (2, 8, 1, 1), recorded')
    assert not any(m._forward_hooks or m._forward_pre_hooks
                   for m in model.modules())


def test_a_block_whose_addition_is_not_seen_is_named():
    """It adds by a sum over a stack; TNS would be that of fewer blocks."""
    model = build(lambda b, x: x + b.a(x), count=6)
    model[3].code = lambda b, x: torch.stack([x, b.a(x)]).sum(0)
    found = find_steps(model, X)
    assert [s.name for s in found if not s.left_out] == ['1', '2', '4', '5']
    assert [(s.name, s.left_out) for s in found if s.left_out] == [
        ('0', 'first of its stage'),
        ('3', 'no addition to its state was seen')]


def test_find_steps_computes_nothing_on_the_meta_device():
    from torch._subclasses.fake_tensor import FakeTensorMode
    wanted = find_steps(build(heun), X)
    assert find_steps(build(heun).to('meta'), X.to('meta')) == wanted
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert find_steps(build(heun), torch.empty(2, 6, 8)) == wanted


def test_a_line_of_the_page_of_families():
    pytest.importorskip('timm')
    from tests.zoo.found_steps import line
    cells = line('torchvision', 'resnet18').split('\t')
    assert cells[:5] == ['torchvision', 'resnet', 'resnet18', '4', '4']
    assert cells[6] == '5 fused'  # without the three projected blocks
