"""Steps of blocks that nobody has described, against formulas by hand."""

import copy

import pytest
import torch
import torch.nn as nn
from torch import Tensor
from torchvision.models import swin_t

from mmstepnet import (
    ResidualStep,
    insert_steps,
)
from tests.utils import TORCH_21, Adds

from . import own_forward_blocks as blocks
from .insertion import perturb, perturb_gates

C = blocks.C
MAP = (4, C, 6, 6)


def random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0),
                       dtype=torch.float64)


def stack(make, shape=MAP, **options):
    """Three blocks with steps whose gates have moved, and an input."""
    model = perturb(nn.Sequential(make(), make(), make())).double().eval()
    x = random(*shape)
    names = insert_steps(model, example=x, **options)
    assert names == ['0', '1', '2']
    return perturb_gates(model), x


def gate(step: ResidualStep, x: Tensor, f: Tensor) -> Tensor:
    """Δt of StepNet as the paper prints it, from maps (N, C, H, W)."""
    a = step.attention
    p, q = x.mean((2, 3)), (x + f).mean((2, 3))
    z = a.pair_weight[:, 0] * p + a.pair_weight[:, 1] * q
    y = (z - a.bn.running_mean) / (a.bn.running_var + a.bn.eps).sqrt()
    y = y * a.bn.weight + a.bn.bias
    return (a.scale * (a.ie_weight * y + a.ie_bias).sigmoid())[..., None, None]


def step_of_tokens(step: ResidualStep, x: Tensor, f: Tensor) -> Tensor:
    to_maps = lambda t: t.transpose(1, 2)[..., None]  # noqa: E731
    dt = gate(step, to_maps(x), to_maps(f))
    return x + f * dt[..., 0].transpose(1, 2)


@pytest.mark.parametrize('spelling', blocks.ADDITIONS)
def test_every_spelling_of_an_addition(spelling):
    add, factor = blocks.ADDITIONS[spelling]
    kind = type('Block', (blocks.Conv, ), dict(add=staticmethod(add)))
    model, x = stack(kind)
    wanted = x
    for block in model:
        assert type(block).__name__ == 'Block' and isinstance(block, kind)
        f = factor * block.f(wanted)
        wanted = (wanted + f * gate(block.step, wanted, f)).relu()
    torch.testing.assert_close(model(x), wanted, rtol=1e-12, atol=1e-12)


def test_a_step_of_some_channels():
    model, x = stack(blocks.DualPath, layout='NCHW')
    wanted = x
    for block in model:
        part, rest = wanted.split((5, C - 5), 1)
        f = block.f(wanted)
        part = part + f * gate(block.step, part, f)
        wanted = torch.cat([part, rest], 1)
    torch.testing.assert_close(model(x), wanted, rtol=1e-12, atol=1e-12)


def test_other_additions_are_not_taken():
    model, x = stack(blocks.Residual)
    wanted = x
    for block in model:
        f = block.f(wanted)
        wanted = wanted + f * gate(block.step, wanted, f)
    torch.testing.assert_close(model(x), wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize('post_norm', [False, True])
def test_two_steps_of_tokens(post_norm):
    model, x = stack(lambda: blocks.Encoder(post_norm), (4, 5, C))
    wanted = x
    for block in model:
        for step, branch, norm in ((block.attn_step, block.attend, block.ln1),
                                   (block.mlp_step, block.mlp, block.ln2)):
            if post_norm:
                wanted = norm(step_of_tokens(step, wanted, branch(wanted)))
            else:
                wanted = step_of_tokens(step, wanted, branch(norm(wanted)))
    torch.testing.assert_close(model(x), wanted, rtol=1e-12, atol=1e-12)


def test_branches_of_one_state_are_one_step():
    model, x = stack(blocks.Parallel, (4, 5, C))
    wanted = x
    for block in model:
        y = block.ln1(wanted)
        wanted = step_of_tokens(
            block.step, wanted, block.attend(y) + block.mlp(y))
    torch.testing.assert_close(model(x), wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize('kind', [
    '', 'a += x; a += b', 'a += x; b + a', 'a += x; b += a', 'x += a; x += b',
    'x += a; x + b'])
def test_branches_that_are_added_in_place(kind, monkeypatch):
    """The sum takes the memory of a branch, or of a state used again."""
    monkeypatch.setattr(blocks.Skip, 'make', blocks.Parallel2d)
    x = torch.randn(2, C, 5, 6).double()
    found = {}
    for way in dict.fromkeys(('', kind)):
        monkeypatch.setattr(blocks.Parallel2d, 'kind', way)
        torch.manual_seed(0)
        model = blocks.Skip().double().eval()
        with torch.no_grad():
            wanted = model(x)
            insert_steps(model, example=x)
            torch.testing.assert_close(model(x), wanted, rtol=1e-5, atol=1e-5)
            found[way] = perturb(model)(x)
    if not kind.startswith('x'):  # as written in new tensors
        torch.testing.assert_close(found[kind], found[''])


@pytest.mark.parametrize('make, shape, to_maps', [
    (blocks.LastChannels, (4, 5, 6, C), lambda t: t.permute(0, 3, 1, 2)),
    (blocks.LastChannels, (5, 4, C), lambda t: t.permute(1, 2, 0)[..., None]),
    (blocks.LastChannels, (4, C), lambda t: t[..., None, None]),
    (blocks.Volume, (4, C, 2, 5, 6), lambda t: t.flatten(3)),
    (blocks.LastChannels, (4, 2, 5, 6, C),
     lambda t: t.permute(0, 4, 1, 2, 3).flatten(3)),
])
def test_layouts(make, shape, to_maps):
    options = dict(layout='LNC') if shape == (5, 4, C) else {}
    model, x = stack(make, shape, **options)
    wanted = x
    for block in model:
        f = block.f(wanted)
        dt = gate(block.step, to_maps(wanted), to_maps(f))
        wanted = to_maps(wanted) + to_maps(f) * dt  # as maps, back below
        wanted = wanted.reshape(to_maps(x).shape)
        wanted = _from_maps(wanted, shape)
    torch.testing.assert_close(model(x), wanted, rtol=1e-12, atol=1e-12)


def _from_maps(t: Tensor, shape: tuple) -> Tensor:
    if len(shape) == 2:
        return t[..., 0, 0]
    if shape == (5, 4, C):
        return t[..., 0].permute(2, 0, 1)
    if len(shape) == 4:
        return t.permute(0, 2, 3, 1)
    t = t.unflatten(3, (5, 6))
    return t if shape[1] == C else t.permute(0, 2, 3, 4, 1)


def test_the_width_is_not_guessed():
    model = nn.Sequential(Bare(), Bare(), Bare())
    with pytest.raises(ValueError, match=r'\(2, 8, 8\).*layout='):
        insert_steps(model, example=torch.rand(2, C, C))
    names = insert_steps(model, example=torch.rand(2, C, C), layout='NLC')
    assert names == ['0', '1', '2']


class Bare(nn.Module):
    """Mixes tokens and channels by matrices alone."""

    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.randn(C, C))

    def forward(self, x):
        return x + self.a @ x @ self.a


def test_a_state_that_is_used_again():
    model = perturb(blocks.Skip()).double().eval()
    twin = copy.deepcopy(model)
    x = random(*MAP)
    insert_steps(model, example=x)
    torch.testing.assert_close(model(x), twin(x), rtol=1e-6, atol=1e-6)
    perturb_gates(model)
    wanted = x
    for block in model.blocks:
        f = block.conv(wanted)
        wanted = wanted + f * gate(block.step, wanted, f)
    # += changes the state that the model adds at its end.
    torch.testing.assert_close(model(x), 4 * wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize('way, message', [
    ('after', '2 additions of two tensors were seen where 1'),
    ('none', '0 of its 1 steps'),
    ('another', '0 of its 1 steps'),
    ('checkpoint', 'within a checkpoint of its own'),
    ('reentrant', 'within a checkpoint of its own'),
])
def test_another_way_is_an_error(way, message):
    if way == 'checkpoint' and TORCH_21:
        pytest.skip('PyTorch 2.1 does not tell of checkpoints')
    model, x = stack(blocks.Switched)
    model[1].way = way
    with pytest.raises(RuntimeError, match=f'^1.*{message}'):
        model(x.requires_grad_())


def test_additions_within_the_branch_may_differ():
    """As those of a mask that small images do not need."""
    model, x = stack(blocks.Switched)
    model[1].way = 'more'
    wanted = x
    for k, block in enumerate(model):
        f = block.conv(wanted) * (2 if k == 1 else 1)
        wanted = wanted + f * gate(block.step, wanted, f)
    torch.testing.assert_close(model(x), wanted)


class OfTokens(blocks.Conv):
    """A second residual step for large maps, added to a view of the state."""

    def forward(self, x):
        x = x + self.conv(x)
        if x.shape[-1] > 6:
            tokens = x.flatten(2)
            tokens = tokens + tokens.tanh()
            x = tokens.view(x.shape)
        return x


def test_steps_that_nobody_has_seen():
    """They are no step that is left out in silence."""
    model, _ = stack(OfTokens)
    with pytest.raises(RuntimeError, match='went another way'):
        model(random(2, C, 9, 9))


@pytest.mark.parametrize('size', [32, 64, 96])
def test_windows_at_any_size(size):
    """Swin shifts its windows where there are several, and masks them."""
    model = swin_t().double().eval()
    x = torch.rand(2, 3, size, size).double()
    wanted = model(x)
    insert_steps(model)
    torch.testing.assert_close(model(x), wanted)


def test_a_checkpoint_around_the_block():
    model, x = stack(blocks.Conv)
    model.train()
    twin = copy.deepcopy(model)
    wanted = twin(x).sum()
    wanted.backward()
    out = x
    for block in model:
        out = torch.utils.checkpoint.checkpoint(
            block, out, use_reentrant=False)
    out.sum().backward()
    for p, q in zip(model.parameters(), twin.parameters()):
        torch.testing.assert_close(p.grad, q.grad)
    for p, q in zip(model.buffers(), twin.buffers()):
        assert torch.equal(p, q)


class Breaks(nn.Linear):
    """The compiler's graph ends within it, as at an LSTM."""

    def forward(self, x):
        out = super().forward(x)
        torch._dynamo.graph_break()
        return out


@pytest.mark.skipif(TORCH_21, reason='PyTorch compiles modes from 2.6 on')
def test_a_graph_that_breaks_within_a_block():
    """The step is then taken in what the compiler resumes with."""
    model = nn.Sequential(Adds(Breaks(8, 8)), Adds(Breaks(8, 8))).eval()
    tokens = torch.rand(2, 5, 8)
    insert_steps(model, example=tokens)
    for block in model:
        perturb(block.step.attention)
    expected = model(tokens)
    compiled = torch.compile(model, backend='aot_eager')
    torch.testing.assert_close(compiled(tokens), expected)
