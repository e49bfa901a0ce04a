"""The rules by which steps are found, each on networks written for it."""

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torchvision.models.resnet import BasicBlock, ResNet

from mmstepnet import find_steps
from mmstepnet.steps.finding import FIRST
from mmstepnet.steps.finding.additions import PROJECTS
from tests.test_stiffness.reference import recorded, size
from tests.utils import Adds, perturb, seeded

X = seeded(2, 6, 8, seed=3)
MAPS = seeded(2, 8, 5, 5, seed=4)


class Block(nn.Module):
    """A block by its code: ``code(block, x)`` with layers a, b, c, norm."""

    def __init__(self, code, maps=False):
        super().__init__()
        for name in 'abc':
            layer = nn.Conv2d(8, 8, 1) if maps else nn.Linear(8, 8)
            setattr(self, name, layer)
        self.norm = nn.BatchNorm2d(8) if maps else nn.LayerNorm(8)
        self.scale = nn.Parameter(torch.rand(1, 8, 1, 1) + 0.5)
        self.code = code

    def forward(self, x):
        return self.code(self, x)


def build(code, maps=False, count=3):
    return perturb(nn.Sequential(
        *[Block(code, maps) for _ in range(count)])).eval()


def assert_ratio(recorder, model, x, branch, reading='adaptive'):
    """NSI of the one step of each block, by its formula in float64."""
    assert recorder.blocks == ['1', '2']
    with torch.no_grad():
        for k, block in enumerate(model):
            if k:
                torch.testing.assert_close(
                    recorder.record[reading][:, k - 1].double(),
                    size(branch(block, x)) / size(x), rtol=1e-5, atol=0)
            x = block(x)


class Foreign(nn.Linear):
    """A linear layer that no mode sees, as an extension of C++."""

    def forward(self, x):
        weight, bias = (t.detach().numpy() for t in (self.weight, self.bias))
        return torch.from_numpy(x.numpy() @ weight.T + bias)


class InBuffer(Foreign):
    """One that writes in memory that a mode saw being made."""

    def forward(self, x):
        out = x.new_empty(x.shape)
        out.numpy()[:] = super().forward(x).numpy()
        return out


class Add(nn.Module):
    def forward(self, x, f):
        return x + f


class Positions(nn.Module):
    """Positions by the shape alone, or learnt: foreign to the state."""

    def __init__(self, learnt):
        super().__init__()
        self.table = nn.Parameter(torch.rand(X.shape)) if learnt else None

    def forward(self, x):
        if self.table is not None:
            return self.table[:, :x.shape[1]]
        out = torch.zeros(x.shape)
        out[..., ::2] = torch.arange(6.)[:, None].sin()
        return out


def with_layer(code, make, **layers):
    """Code of a block one of whose layers is another one."""
    def own(block, x):
        if not isinstance(getattr(block, 'own', None), nn.Module):
            block.own = perturb(make())
        return code(block, x)
    return own


def heun(block, x):
    first = block.a(x)
    return x + (first + block.a(x + first)) / 2


def res2net(block, x):
    head, tail = x.split(4, 2)
    return block.b(torch.cat([head, tail + block.a(x)[..., :4]], 2))


def backwards(block, x):
    return block.b(torch.from_numpy(x.numpy()[..., ::-1].copy()))


def a(block, x):
    return block.a(x)


STEPS = {  # code of a block, and the branch that it adds
    'parallel': (lambda b, x: x + b.a(x) + b.b(x),
                 lambda b, x: b.a(x) + b.b(x)),
    'parallel, state last': (lambda b, x: b.a(x) + b.b(x) + x,
                             lambda b, x: b.a(x) + b.b(x)),
    'parallel, summed before': (lambda b, x: x + (b.a(x) + b.b(x)),
                                lambda b, x: b.a(x) + b.b(x)),
    # A stage of a Runge-Kutta method is no step.
    'Heun': (heun, lambda b, x: heun(b, x) - x),
    'slices of one memory': (lambda b, x: x + res2net(b, x), res2net),
    'of a caller': (lambda b, x: Add()(x, b.a(x)), a),
    **{f'copy {k}': (lambda b, x, same=same: same(x) + b.a(x), a)
       for k, same in enumerate((
           lambda x: x.clone(), lambda x: x.double().float(),
           lambda x: 2 * (x / 2), lambda x: x.detach().view(-1).view_as(x),
           lambda x: x.transpose(1, 2).contiguous().transpose(1, 2)))},
    'alpha': (lambda b, x: x.add(b.a(x), alpha=0.5),
              lambda b, x: 0.5 * b.a(x)),
    'sub': (lambda b, x: x - b.a(x), a),
    'lerp': (lambda b, x: x.lerp(b.a(x), 0.25),
             lambda b, x: (b.a(x) - x) / 4),
    'addcmul': (lambda b, x: x.addcmul(b.a(x), b.b(x)),
                lambda b, x: b.a(x) * b.b(x)),
    'in place': (lambda b, x: b.a(x).add_(x), a),
    'overwritten': (lambda b, x: x.clone().add_(b.a(x)).relu_(), a),
    'by NumPy': (lambda b, x: x + backwards(b, x), backwards),
    **{cls.__name__: (
        with_layer(lambda b, x: x + b.norm(b.own(b.b(x))),
                   lambda cls=cls: cls(8, 8)),
        lambda b, x: b.norm(b.own(b.b(x)))) for cls in (Foreign, InBuffer)},
}


@pytest.mark.parametrize('key', STEPS)
def test_steps(key):
    code, branch = STEPS[key]
    model = build(code)
    recorder = recorded(model, X)
    assert_ratio(recorder, model, X, branch)
    assert_ratio(recorder, model, X, lambda b, x: code(b, x) - x, 'returned')


def reuse(block, x):
    """The branch is freed and its address given to something else."""
    for _ in range(20):
        block.a(x)
        out = x.clone() + torch.full_like(x, 0.5)
    return out


@pytest.mark.parametrize('code', [
    lambda b, x: x + x * (x.norm(dim=1, keepdim=True) / 3),  # GRN
    lambda b, x: x + torch.sin(3 * x)**2 / 3,  # Snake
    lambda b, x: 0.5 * x * (1 + torch.tanh(x + 0.04 * x**3)),  # GELU
    lambda b, x: x + (F.embedding(
        b.a(x).argmax(-1), b.b.weight) - x).detach(),
    lambda b, x: x + torch.randn_like(b.a(x)),
    lambda b, x: x + (b.a(x) > 0).to(x.dtype),
    lambda b, x: b.a(x) + b.b(x),
    lambda b, x: x + b.a.weight.sum(),
    reuse,
    *(with_layer(lambda b, x: b.norm(b.b(x + b.own(x))),
                 lambda learnt=learnt: Positions(learnt))
      for learnt in (True, False)),
])
def test_no_steps(code):
    """A branch was computed from the state and has passed a contraction."""
    assert not any(s.left_out is None for s in find_steps(build(code), X))
    # The same with a contraction on the way is one.
    steps = find_steps(build(lambda b, x: x + b.c(code(b, x))), X)
    assert [s.name for s in steps if not s.left_out] == ['1', '2']


def test_a_norm_of_a_state_is_one():
    """Post-norm, where what follows the norm is given to nobody as it is."""
    def code(block, x):
        x = block.norm(x + block.a(x))
        return x + block.b(x * 1.5 + 1)

    model = build(code)
    recorder = recorded(model, X)
    assert recorder.blocks == [
        f'{k}.{s}' for k in (1, 2) for s in ('attn_step', 'mlp_step')]
    with torch.no_grad():
        x = model[0](X)
        y = model[1].norm(x + model[1].a(x))
    torch.testing.assert_close(
        recorder.record['returned'][:, 0].double(), size(y - x) / size(x),
        rtol=1e-5, atol=0)


@pytest.mark.parametrize('batch', [1, 2])
def test_a_slice_of_what_the_block_was_given_is_a_state(batch):
    """As dual path networks add to it; the other slice goes on as it is."""
    def branch(b, x):
        return b.b(torch.relu(b.a(x)))[..., :5]

    model, x = build(lambda b, x: torch.cat(
        [x[..., :5] + branch(b, x), x[..., 5:]], 2)), X[:batch]
    recorder = recorded(model, x)
    assert recorder.blocks == ['1', '2']
    assert recorder.steps[1].shape == (batch, 6, 5)
    with torch.no_grad():
        x = model[0](x)
        expected = size(branch(model[1], x)) / size(x[..., :5])
    torch.testing.assert_close(
        recorder.nsi[:, 0].double(), expected, rtol=1e-5, atol=0)


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
    assert first.left_out == FIRST and first.name == '1'
    assert second.name == second.block == second.owner == '2'
    assert second.stage == ''
    assert second.gate == (2, 8, 1, 1) and third.left_out is None
    assert str(second) == ('2: (2, 8, 7, 5), gate (2, 8, 1, 1), recorded')
    assert not any(m._forward_hooks or m._forward_pre_hooks
                   for m in model.modules())
    # On the meta device it is the same, and nothing is computed.
    wanted = find_steps(build(heun), X)
    assert find_steps(build(heun).to('meta'), X.to('meta')) == wanted
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert find_steps(build(heun), torch.empty(2, 6, 8)) == wanted


def wrapper(width=8):
    """As in SHViT and MSRA's EfficientViT."""
    return Adds(nn.Linear(width, width))


class Net(nn.Module):
    """Children by name, and the code that calls them."""

    def __init__(self, code=None, **children):
        super().__init__()
        for name, child in children.items():
            self.add_module(name, child)
        self.code = code

    def forward(self, x, **kwargs):
        if self.code is None:
            for child in self.children():
                x = child(x)
            return x
        return self.code(self, x, **kwargs)


class Other(Net):
    """Of another class."""


def pair():
    """A block of wrappers that are called one after the other."""
    return Net(conv=wrapper(), ffn=wrapper())


def cpubone():
    mlp = Adds(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)))
    return nn.Sequential(nn.Sequential(wrapper(), mlp), wrapper())


def partial(width, blocks):
    """A stage that passes half of its channels by, as in CSPNet."""
    return Net(lambda m, x: m.final(m.blocks(m.main(x)) * m.short(x)),
               main=nn.Linear(8, width), short=nn.Linear(8, width),
               final=nn.Linear(width, 8),
               blocks=nn.Sequential(*(wrapper(width) for _ in range(blocks))))


def csp(*depths):
    return nn.Sequential(*(
        nn.Sequential(nn.Linear(8, 8), partial(width, n))
        for width, n in zip((4, 5, 6), depths)))


def both():
    """Two layers that are added, as in RepVGG."""
    return Net(lambda m, x: m.a(x) + m.b(x),
               a=nn.Linear(8, 8), b=nn.Linear(8, 8))


def nested(shortcut):
    """A branch that adds to its own state, as MViTv2's attention does."""
    return Net(lambda m, x: m.shortcut(x) + m.inner(x), shortcut=shortcut,
               inner=wrapper())


def two_streams():
    """Pixels that are also projected into patches, as in TNT."""
    def code(m, x):
        pixels, patches = x
        pixels = pixels + m.attn(pixels)
        pixels = pixels + m.mlp(pixels)
        patches = patches + m.proj(pixels)
        return pixels, patches + m.patches(patches)

    return Net(code, **{name: nn.Linear(8, 8) for name in (
        'attn', 'mlp', 'proj', 'patches')})


def in_lists():
    """States in a list, with something else beside them."""
    def code(m, states):
        x, other = states[-1]
        return [*states, (x + m.a(x), other)]

    return Net(code, a=nn.Linear(8, 8))


def queries():
    """A decoder's layer as in DETR: its queries get positions each time."""
    def code(m, states, positions):
        return states + m.a(states + positions) * torch.sigmoid(m.b(states))

    return Net(code, a=nn.Linear(8, 8), b=nn.Linear(8, 8))


def decoder(m, x):
    states = x
    for layer in m.layers:
        states = layer(states, positions=x.flip(1))
    return states


def without_sum():
    """A block that adds by a sum over a stack."""
    model = build(lambda b, x: x + b.a(x), count=6)
    model[3].code = lambda b, x: torch.stack([x, b.a(x)]).sum(0)
    return model


def row(make, n=3):
    return nn.Sequential(*(make() for _ in range(n)))


ALONE, BRANCH = 'no container', 'part of the branch of another step'
STAGES = {  # a network, and (name, stage, why it is left out) of its steps
    'a list rather than a block of wrappers': (
        lambda: Net(blocks=row(pair, 2)),
        [(f'blocks.{k}.{s}_step', 'blocks', None if k else FIRST)
         for k in (0, 1) for s in ('attn', 'mlp')]),
    'a block that is a list, as in CPUBone': (
        lambda: nn.Sequential(nn.Linear(8, 8), row(cpubone, 2)),
        [(f'1.{k}.{s}', '1', None if k else FIRST)
         for k in (0, 1) for s in ('0.0', '0.1', '1')]),
    'one block beside a longer stage': (
        lambda: nn.Sequential(row(pair, 2), nn.Linear(8, 8), row(pair, 1)),
        [*((f'0.{k}.{s}_step', '0', None if k else FIRST)
           for k in (0, 1) for s in ('attn', 'mlp')),
         ('2.0.attn_step', '2', None), ('2.0.mlp_step', '2', None)]),
    'wrappers in no list': (
        pair, [('conv', '', FIRST), ('ffn', '', None)]),
    'blocks that stand alone, as in RTMDet': (
        lambda: csp(1, 1, 1),
        [(f'{k}.1.blocks.0', f'{k}.1.blocks', None) for k in range(3)]),
    'one that stands alone, as in YOLOv5': (
        lambda: csp(1, 2),
        [('0.1.blocks.0', '0.1.blocks', None),
         ('1.1.blocks.0', '1.1.blocks', FIRST),
         ('1.1.blocks.1', '1.1.blocks', None)]),
    'a single block': (
        lambda: partial(4, 1), [('blocks.0', None, ALONE)]),
    'a block that runs again': (
        lambda: Net(lambda m, x: m.blocks[0](m.blocks[0](m.blocks[0](x))),
                    blocks=row(wrapper, 1)),
        [('blocks.0', 'blocks', FIRST), ('blocks.0#2', 'blocks', None),
         ('blocks.0#3', 'blocks', None)]),
    'branches that add, as in RepGhostNet': (
        lambda: nn.Sequential(
            nn.Sequential(Adds(both())), nn.Linear(8, 8),
            nn.Sequential(Adds(both()), Adds(both()))),
        [('0.0', '0', None), ('2.0', '2', FIRST), ('2.1', '2', None)]),
    'steps in branches, as in MViTv2': (
        lambda: nn.Sequential(nested(nn.Identity()), nested(nn.Linear(8, 8)),
                              nested(nn.Identity())),
        [('0', '', BRANCH), ('0', '', FIRST), ('1', '', BRANCH),
         ('2', '', BRANCH), ('2', '', None)]),
    'lists of other parts, as in FastViT': (
        lambda: Net(stem=nn.Sequential(both()), stages=nn.Sequential(Other(
            position=wrapper(), blocks=row(pair, 2)))),
        [('stages.0.position', None, ALONE), *(
            (f'stages.0.blocks.{k}.{s}_step', 'stages.0.blocks',
             None if k else FIRST) for k in (0, 1) for s in ('attn', 'mlp'))]),
    'streams that are also projected, as in TNT': (
        lambda: Net(lambda m, x: m.blocks((x, m.embed(x)))[1],
                    embed=nn.Linear(8, 8), blocks=row(two_streams)),
        [(f'blocks.{k}.step{s}', 'blocks', None if k else FIRST)
         for k in range(3) for s in (1, 2, 3)]),
    'states in lists and tuples': (
        lambda: Net(lambda m, x: m.blocks([(x, torch.ones(()))])[-1][0],
                    blocks=row(in_lists)),
        [(f'blocks.{k}', 'blocks', None if k else FIRST) for k in range(3)]),
    'queries with positions, as in DETR': (
        lambda: Net(decoder, layers=nn.ModuleList(
            [queries() for _ in range(3)])),
        [(f'layers.{k}', 'layers', None if k else FIRST) for k in range(3)]),
    'layers in one module': (
        lambda: Net(lambda m, x: m.a(x) + x + F.gelu(m.b(m.a(x) + x)),
                    a=nn.Linear(8, 8), b=nn.Linear(8, 8)),
        [('', None, ALONE)] * 2),
    'an LSTM, which PyTorch takes apart, as in Sequencer': (
        lambda: row(lambda: Net(lambda m, x: x + m.rnn(x)[0], rnn=nn.LSTM(
            8, 8, batch_first=True))).to('meta'),  # as CPUs do not
        [(str(k), '', None if k else FIRST) for k in range(3)]),
    'a block whose addition is not seen': (
        without_sum,
        [(str(k), '', None if k else FIRST) for k in (0, 1, 2, 4, 5)]
        + [('3', '', 'no addition to its state was seen')]),
}


@pytest.mark.parametrize('key', STAGES)
def test_blocks_and_stages(key):
    build, expected = STAGES[key]
    model = build()
    found = [(s.name, s.stage, s.left_out) for s in find_steps(
        model, X.to(next(model.parameters()).device))]
    assert [s for s in found if s[2] != PROJECTS] == expected
    assert 'LSTM' not in key or len(found) == 3


def test_a_block_alone_that_projects_is_the_first_one():
    model = ResNet(BasicBlock, [1, 2, 1, 1])
    assert [(s.name, s.left_out) for s in find_steps(
        model, torch.rand(1, 3, 32, 32)) if s.block] == [
        ('layer1.0', None), ('layer2.0', PROJECTS), ('layer2.1', None),
        ('layer3.0', PROJECTS), ('layer4.0', PROJECTS)]
