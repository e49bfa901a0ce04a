"""The rules by which steps and gates are found, on networks for each."""

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torchvision.models.resnet import BasicBlock, ResNet
from torchvision.ops import stochastic_depth

from mmstepnet import find_steps, insert_steps
from mmstepnet.stiffness import measure_gates
from mmstepnet.tracing import FIRST
from mmstepnet.tracing.additions import PROJECTS
from tests.test_stiffness.reference import (
    IMAGES,
    MAPS,
    ONE,
    assert_recorded,
    ready,
    recorded,
    row,
    small_resnet,
)
from tests.utils import Adds, perturb, seeded

X = seeded(2, 6, 8, seed=3)


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


class Learnt(nn.Module):
    """Positions, foreign to the state."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.rand(X.shape))

    def forward(self, x):
        return self.table[:, : x.shape[1]]


class Fixed(nn.Module):
    """Positions by the shape alone."""

    def forward(self, x):
        out = torch.zeros(x.shape)
        out[..., ::2] = torch.arange(6.0)[:, None].sin()
        return out


class Add(nn.Module):
    def forward(self, x, f):
        return x + f


class Block(nn.Module):
    """A block by its code, ``code(block, x)``, and its layers."""

    def __init__(self, code, maps=False):
        super().__init__()
        for name in 'abc':
            layer = nn.Conv2d(8, 8, 1) if maps else nn.Linear(8, 8)
            setattr(self, name, layer)
        self.norm = nn.BatchNorm2d(8) if maps else nn.LayerNorm(8)
        self.scale = nn.Parameter(torch.rand(1, 8, 1, 1) + 0.5)
        self.foreign, self.in_buffer = Foreign(8, 8), InBuffer(8, 8)
        self.learnt, self.fixed, self.add = Learnt(), Fixed(), Add()
        self.code = code

    def forward(self, x):
        return self.code(self, x)


def build(code, maps=False, count=3):
    return perturb(row(lambda: Block(code, maps), count)).eval()


def heun(block, x):
    first = block.a(x)
    return x + (first + block.a(x + first)) / 2


def res2net(block, x):
    head, tail = x.split(4, 2)
    return block.b(torch.cat([head, tail + block.a(x)[..., :4]], 2))


def backwards(block, x):
    return block.b(torch.from_numpy(x.numpy()[..., ::-1].copy()))


def dual_path(block, x):
    """The branch of a slice; the other slice goes on as it is."""
    return block.b(torch.relu(block.a(x)))[..., :5]


def post_norm(block, x):
    """What follows the norm is given to nobody as it is."""
    x = block.norm(x + block.a(x))
    return x + block.b(x * 1.5 + 1)


def post_norm_steps(block, x):
    f = block.a(x)
    y = block.norm(x + f)
    return [(x, f, ONE), (y, block.b(y * 1.5 + 1), ONE)]


def gate(block, f):
    return torch.sigmoid(block.c(f.mean((2, 3), keepdim=True)))


def branch(block, x):
    return block.norm(block.a(x))


def gated_steps(block, x):
    f = branch(block, x)
    return [(x, f, gate(block, f))]


def a(block, x):
    return block.a(x)


def rows(block, x):
    """A branch (N, C, L) and its gate (N, C, 1)."""
    f = F.conv1d(x, block.a.weight[..., None])
    return f, torch.sigmoid(block.c(f.mean(2)))[..., None]


def in_mmcv(f):
    return f.div(0.5) * (0.5 + torch.rand(len(f), 1, 1, 1)).floor()


GATED = {
    'gate': lambda b, x: x + branch(b, x) * gate(b, branch(b, x)),
    'in place': lambda b, x: x + branch(b, x).mul_(gate(b, branch(b, x))),
    'expanded': lambda b, x: (
        x + branch(b, x) * gate(b, branch(b, x)).expand_as(x)
    ),
    'from the left': lambda b, x: gate(b, branch(b, x)) * branch(b, x) + x,
}
ADDED = {  # a branch, which the block adds to its state
    'parallel, summed before': lambda b, x: b.a(x) + b.b(x),
    'slices of one memory': res2net,
    'RMSNorm by hand': lambda b, x: (
        b.a(x) * b.a(x).square().mean(-1, keepdim=True).rsqrt()
    ),
    'by NumPy': backwards,
    'foreign': lambda b, x: b.norm(b.foreign(b.b(x))),
    'foreign, in a buffer': lambda b, x: b.norm(b.in_buffer(b.b(x))),
}
FACTORS = (  # of no attention, so that they belong to the branch
    lambda b, x: branch(b, x) * b.scale,  # a layer scale
    lambda b, x: b.a(x) * b.scale[:, :1],  # like stochastic depth
    lambda b, x: b.a(x) * torch.sigmoid(b.c(x).mean(1, keepdim=True)),
    lambda b, x: b.a(x) * torch.sigmoid(b.c(x)),
)
CODES = {  # code of a block, and the branch that it adds, or its steps
    'parallel': (
        lambda b, x: x + b.a(x) + b.b(x),
        lambda b, x: b.a(x) + b.b(x),
    ),
    # A stage of a Runge-Kutta method is no step.
    'Heun': (heun, lambda b, x: heun(b, x) - x),
    'a slice of the state': (
        lambda b, x: torch.cat([x[..., :5] + dual_path(b, x), x[..., 5:]], 2),
        lambda b, x: [(x[..., :5], dual_path(b, x), ONE)],
    ),
    'post-norm': (post_norm, post_norm_steps),
    'of a caller': (lambda b, x: b.add(x, b.a(x)), a),
    **{
        f'copy {k}': (lambda b, x, same=same: same(x) + b.a(x), a)
        for k, same in enumerate(
            (
                lambda x: x.clone(),
                lambda x: x.double().float(),
                lambda x: 2 * (x / 2),
                lambda x: torch.tensor(2.0) * (x / 2),
                lambda x: x.detach().view(-1).view_as(x),
                lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
            )
        )
    },
    'alpha': (
        lambda b, x: x.add(b.a(x), alpha=0.5),
        lambda b, x: 0.5 * b.a(x),
    ),
    'sub': (lambda b, x: x - b.a(x), a),
    'a multiple': (lambda b, x: (x + b.a(x)) / 2, a),
    'in vmap': (
        lambda b, x: x + torch.vmap(b.norm)(b.a(x)),
        lambda b, x: b.norm(b.a(x)),
    ),
    'in place': (lambda b, x: b.a(x).add_(x), a),
    'out': (lambda b, x: torch.add(b.a(x), y := x.clone(), out=y), a),
    'overwritten': (lambda b, x: x.clone().add_(b.a(x)).relu_(), a),
}
CASES = {
    **{key: (*case, X) for key, case in CODES.items()},
    **{
        f'{key} {x.dim()}': (lambda b, x, f=f: x + f(b, x), f, x)
        for x, branches in ((X, ADDED), (MAPS, dict(enumerate(FACTORS))))
        for key, f in branches.items()
    },
    **{
        f'gated, {key}': (code, gated_steps, MAPS)
        for key, code in GATED.items()
    },
    'gated, rows': (
        lambda b, x: x + torch.mul(*rows(b, x)),
        lambda b, x: [(x, *rows(b, x))],
        X.transpose(1, 2),
    ),
    **{
        f'gated, scaled {k}': (
            lambda b, x, change=change: (
                x + change(branch(b, x) * gate(b, branch(b, x)) * b.scale) / 3
            ),
            lambda b, x: [
                (x, branch(b, x) * b.scale / 6, gate(b, branch(b, x)))
            ],
            MAPS.repeat(6, 1, 1, 1),
        )
        for k, change in enumerate(
            (
                lambda f: f.mul_(0.5),
                lambda f: (0.5 * f.double()).float(),
                lambda f: 0.5 * in_mmcv(f),
                lambda f: f.mul_(torch.rand(len(f), 1, 1, 1).round()) / 2,
            )
        )
    },
    # Stochastic depth is no part of the step.
    **{
        f'dropped {k}': (
            lambda b, x, drop=drop: x + drop(b.a(x)),
            a,
            MAPS.repeat(6, 1, 1, 1),
        )
        for k, drop in enumerate(
            (lambda f: stochastic_depth(f, 0.5, 'row'), in_mmcv)
        )
    },
}


@pytest.mark.parametrize('batch', [1, None])
@pytest.mark.parametrize('key', CASES)
def test_readings_are_those_of_the_formula(key, batch):
    code, branch, x = CASES[key]

    def steps(block, x):
        found = branch(block, x)
        return found if isinstance(found, list) else [(x, found, ONE)]

    model, x = build(code, maps=x.dim() == 4), x[:batch]
    recorder = recorded(model, x)
    assert recorder.blocks == (
        ['1', '2']
        if key != 'post-norm'
        else [
            f'{k}.{step}' for k in (1, 2) for step in ('attn_step', 'mlp_step')
        ]
    )
    assert_recorded(recorder, model, steps, x)


@pytest.mark.parametrize('key', GATED)
def test_whether_a_gate_adapts(key):
    model, seen = build(GATED[key], maps=True), {}
    with torch.no_grad():
        x = MAPS
        for k, block in enumerate(model):
            seen[str(k)] = gate(block, branch(block, x))[..., 0, 0].double()
            x = block(x)
    found = measure_gates(
        model.train(), MAPS.split(1), lambda m: m(MAPS).sum()
    )
    one = torch.stack([gates.mean() for gates in seen.values()])
    for name, gates in seen.items():
        assert found.mean[name] == pytest.approx(float(gates.mean()))
        assert found.over_images[name] == pytest.approx(
            float(gates.std(0, correction=0).mean()), rel=1e-4
        )
        assert found.over_channels[name] == pytest.approx(
            float(gates.mean(0).std(correction=0)), rel=1e-4
        )
    assert found.over_blocks == pytest.approx(
        float(one.std(correction=0)), rel=1e-4
    )
    for kind, constants in (
        ('attention', None),
        ('channel mean', [g.mean(0) for g in seen.values()]),
        ('one number', [one.mean()] * 3),
    ):
        x = MAPS
        for k, block in enumerate(model.eval().requires_grad_(False)):
            x = (
                x + branch(block, x) * constants[k].float().view(-1, 1, 1)
                if constants
                else block(x)
            )
        assert found.results[kind] == pytest.approx(float(x.sum()), rel=1e-4)


@pytest.mark.parametrize('attention', ['StepNet', 'SE'])
def test_whether_our_attention_adapts(attention):
    """Once its gates have left their start."""
    model = small_resnet()
    insert_steps(model, attention)
    ready(model)
    with torch.no_grad():
        wanted = pytest.approx(float(model(IMAGES).sum()), rel=1e-4)
    found = measure_gates(model, [IMAGES], lambda m: m(IMAGES).sum())
    assert found.results['attention'] == wanted
    assert found.results['one number'] != wanted
    assert min(found.over_blocks, *found.over_images.values()) > 0


def test_gates_of_projected_blocks_are_replaced_too():
    """Against the network whose SE modules are exchanged by hand."""
    models = pytest.importorskip('timm.models.resnet')
    model = perturb(
        models.ResNet(
            models.BasicBlock,
            [1, 2, 1, 1],
            num_classes=3,
            channels=[8] * 4,
            block_args=dict(attn_layer='se'),
        )
    ).eval()
    seen, handles = {}, []
    for name, module in model.named_modules():
        if name.endswith('.se'):
            handles.append(
                module.gate.register_forward_hook(
                    lambda gate, args, out, name=name[:-3]: seen.update(
                        {name: out.flatten(1)}
                    )
                )
            )
    with torch.no_grad():
        model(IMAGES)
        for handle in handles:
            handle.remove()
        found = measure_gates(model, [IMAGES], lambda m: m(IMAGES).sum())
        assert list(found.mean) == list(seen) and len(seen) == 5
        assert not found.constant and not found.elsewhere
        for name, gate in seen.items():
            assert found.mean[name] == pytest.approx(float(gate.mean()))
            gate = gate.mean(0)[:, None, None]
            model.get_submodule(name).se.register_forward_hook(
                lambda se, args, out, gate=gate: args[0] * gate
            )
        assert found.results['channel mean'] == pytest.approx(
            float(model(IMAGES).sum()), rel=1e-4
        )


@pytest.mark.parametrize(
    'code',
    [
        pytest.param(lambda b, x: x + branch(b, x) * 0.27, id='a number'),
        pytest.param(
            lambda b, x: x + branch(b, x).mul_(b.scale),
            id='a parameter, in place',
        ),
        pytest.param(
            lambda b, x: torch.add(x, branch(b, x), alpha=0.27), id='alpha'
        ),
        pytest.param(
            lambda b, x: x + branch(b, x) * torch.sigmoid(b.scale),
            id='a sigmoid',
        ),
    ],
)
@pytest.mark.parametrize('images', [1, 2])
def test_a_scale_by_construction(code, images):
    """In whatever form a constant is written."""
    found = measure_gates(build(code, maps=True), [MAPS[:images]])
    assert found.constant == ['0', '1', '2'] and not found.mean
    assert found.results == {} and not found.elsewhere


def adding_convolutions():
    return nn.Sequential(
        *(Adds(nn.Conv2d(3, 3, 3, padding=1)) for _ in range(3))
    )


@pytest.mark.parametrize('images', [1, 2])
@pytest.mark.parametrize('network', [small_resnet, adding_convolutions])
def test_our_constant_is_a_scale_by_construction(network, images):
    model = network()
    blocks = insert_steps(
        model, 'LayerScale', first_block=True, example=IMAGES
    )
    found = measure_gates(model, [IMAGES[:images]])
    assert found.constant == blocks and not found.mean


@pytest.mark.parametrize('step', [0, -0.5])
def test_nsi_of_a_step_that_is_0_or_negative(step):
    """It is ‖f‖ / ‖x‖: nothing is divided by the step."""
    model = adding_convolutions().eval()
    insert_steps(
        model,
        'LayerScale',
        example=IMAGES,
        init_step=None,
        initial=step,
        shared=True,
    )
    recorder, x = recorded(model, IMAGES), IMAGES
    with torch.no_grad():
        for k, block in enumerate(model):
            f = F.conv2d(x, *block.f.parameters(), padding=1)
            if k:  # the first is left out
                for reading, change in (('adaptive', f), ('unit', step * f)):
                    torch.testing.assert_close(
                        recorder.record[reading][:, k - 1],
                        change.flatten(1).norm(dim=1)
                        / x.flatten(1).norm(dim=1),
                    )
                assert (recorder.record['step_mean'] == step).all()
            x = x + step * f


def test_a_gate_inside_the_branch_is_named():
    """As of EfficientNet's, where the last layer stands behind it."""
    inside = build(
        lambda b, x: (
            x + b.b(b.a(x) * torch.sigmoid(b.c(x).mean((2, 3), keepdim=True)))
        ),
        maps=True,
    )
    found = measure_gates(inside, [MAPS])
    assert found.elsewhere == ['0', '1', '2']
    assert not found.mean and not found.constant


def reuse(block, x):
    """The branch is freed and its address given to something else."""
    for _ in range(20):
        block.a(x)
        out = x.clone() + torch.full_like(x, 0.5)
    return out


@pytest.mark.parametrize(
    'code',
    [
        pytest.param(
            lambda b, x: x + x * (x.norm(dim=1, keepdim=True) / 3), id='GRN'
        ),  # GRN
        pytest.param(
            lambda b, x: x + torch.sin(3 * x) ** 2 / 3, id='Snake'
        ),  # Snake
        pytest.param(
            lambda b, x: 0.5 * x * (1 + torch.tanh(x + 0.04 * x**3)), id='GELU'
        ),  # GELU
        pytest.param(
            lambda b, x: (
                x + (F.embedding(b.a(x).argmax(-1), b.b.weight) - x).detach()
            ),
            id='codebook',
        ),
        pytest.param(lambda b, x: x + torch.randn_like(b.a(x)), id='noise'),
        pytest.param(lambda b, x: x + (b.a(x) > 0).to(x.dtype), id='a mask'),
        pytest.param(lambda b, x: b.a(x) + b.b(x), id='two branches'),
        pytest.param(lambda b, x: x + b.a.weight.sum(), id='weights'),
        pytest.param(reuse, id='reuse'),
        pytest.param(
            lambda b, x: b.norm(b.b(x + b.learnt(x))), id='learnt positions'
        ),
        pytest.param(
            lambda b, x: b.norm(b.b(x + b.fixed(x))), id='fixed positions'
        ),
    ],
)
def test_no_steps(code):
    """A branch was computed from the state and has passed a contraction."""
    assert not any(s.left_out is None for s in find_steps(build(code), X))
    # The same with a contraction on the way is one.
    steps = find_steps(build(lambda b, x: x + b.c(code(b, x))), X)
    assert [s.name for s in steps if not s.left_out] == ['1', '2']


def test_what_find_steps_tells():
    model = build(
        lambda b, x: (
            x + b.a(x) * torch.sigmoid(b.c(x).mean((2, 3), keepdim=True))
        ),
        maps=True,
    )
    model.insert(0, nn.Conv2d(3, 8, 3))
    first, second, third = find_steps(model, torch.randn(2, 3, 9, 7))
    assert first.left_out == FIRST and first.name == '1'
    assert second.name == second.block == second.owner == '2'
    assert second.stage == '' and third.left_out is None
    assert str(second) == '2: (2, 8, 7, 5), gate (2, 8, 1, 1), recorded'
    # On the meta device it is the same, and nothing is computed.
    wanted = find_steps(build(heun), X)
    assert find_steps(build(heun).to('meta'), X.to('meta')) == wanted
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert find_steps(build(heun), torch.empty(2, 6, 8)) == wanted


class Net(nn.Module):
    """Children by name, and the code that calls them."""

    def __init__(self, code=None, **children):
        super().__init__()
        for name, child in children.items():
            self.add_module(name, child)
        self.code = code

    def forward(self, x, **kwargs):
        if self.code is not None:
            return self.code(self, x, **kwargs)
        for child in self.children():
            x = child(x)
        return x


class Other(Net):
    """Of another class."""


def linear(*names):
    return {name: nn.Linear(8, 8) for name in names}


def wrapper(width=8):
    """As in SHViT and MSRA's EfficientViT."""
    return Adds(nn.Linear(width, width))


def pair():
    """A block of wrappers that are called one after the other."""
    return Net(conv=wrapper(), ffn=wrapper())


def cpubone():
    mlp = Adds(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)))
    return nn.Sequential(nn.Sequential(wrapper(), mlp), wrapper())


def both():
    """Two layers that are added, as in RepVGG."""
    return Net(lambda m, x: m.a(x) + m.b(x), **linear('a', 'b'))


def nested(shortcut):
    """A branch that adds to its own state, as MViTv2's attention does."""
    return Net(
        lambda m, x: m.shortcut(x) + m.inner(x),
        shortcut=shortcut,
        inner=wrapper(),
    )


def two_streams():
    """Pixels that are also projected into patches, as in TNT."""

    def code(m, x):
        pixels, patches = x
        pixels = pixels + m.attn(pixels)
        pixels = pixels + m.mlp(pixels)
        patches = patches + m.proj(pixels)
        return pixels, patches + m.patches(patches)

    return Net(code, **linear('attn', 'mlp', 'proj', 'patches'))


def in_lists():
    """States in a list, with something else beside them."""

    def code(m, states):
        x, other = states[-1]
        return [*states, (x + m.a(x), other)]

    return Net(code, **linear('a'))


def queries():
    """A decoder's layer as in DETR: its queries get positions each time."""
    return Net(
        lambda m, x, positions: x + m.a(x + positions) * torch.sigmoid(m.b(x)),
        **linear('a', 'b'),
    )


def decoder(m, x):
    states = x
    for layer in m.layers:
        states = layer(states, positions=x.flip(1))
    return states


def recurrent():
    return Net(
        lambda m, x: x + m.rnn(x)[0], rnn=nn.LSTM(8, 8, batch_first=True)
    )


def without_sum():
    """A block that adds by a sum over a stack."""
    model = build(lambda b, x: x + b.a(x), count=6)
    model[3].code = lambda b, x: torch.stack([x, b.a(x)]).sum(0)
    return model


def stage(name, count, *steps):
    """Steps of a stage by their names in a block; the first is left out."""
    return [
        (f'{name}.{k}{step}'.lstrip('.'), name, None if k else FIRST)
        for k in range(count)
        for step in steps or ['']
    ]


ALONE, BRANCH = 'no container', 'part of the branch of another step'
PAIR = '.attn_step', '.mlp_step'
STAGES = {  # a network, and (name, stage, why it is left out) of its steps
    'a block that is a list, as in CPUBone': (
        lambda: nn.Sequential(nn.Linear(8, 8), row(cpubone, 2)),
        stage('1', 2, '.0.0', '.0.1', '.1'),
    ),
    'one block beside a longer stage': (
        lambda: nn.Sequential(row(pair, 2), nn.Linear(8, 8), row(pair, 1)),
        [
            *stage('0', 2, *PAIR),
            ('2.0.attn_step', '2', None),
            ('2.0.mlp_step', '2', None),
        ],
    ),
    'wrappers in no list': (
        lambda: Net(first=pair(), blocks=build(lambda b, x: x + b.a(x))),
        [
            ('first.conv', 'first', FIRST),
            ('first.ffn', 'first', None),
            *stage('blocks', 3),
        ],
    ),
    'blocks that stand alone, as in RTMDet': (
        lambda: nn.Sequential(
            *(
                nn.Sequential(
                    nn.Linear(8, k), nn.Sequential(wrapper(k)), nn.Linear(k, 8)
                )
                for k in (4, 5, 6)
            )
        ),
        [(f'{k}.1.0', f'{k}.1', None) for k in range(3)],
    ),
    'branches that add, as in RepGhostNet': (
        lambda: nn.Sequential(
            nn.Sequential(Adds(both())),
            nn.Linear(8, 8),
            nn.Sequential(Adds(both()), Adds(both())),
        ),
        [('0.0', '0', None), *stage('2', 2)],
    ),
    'steps in branches, as in MViTv2': (
        lambda: nn.Sequential(
            nested(nn.Identity()),
            nested(nn.Linear(8, 8)),
            nested(nn.Identity()),
        ),
        [
            ('0', '', BRANCH),
            ('0', '', FIRST),
            ('1', '', BRANCH),
            ('2', '', BRANCH),
            ('2', '', None),
        ],
    ),
    'lists of other parts, as in FastViT': (
        lambda: Net(
            stem=nn.Sequential(both()),
            stages=nn.Sequential(
                Other(position=wrapper(), blocks=row(pair, 2))
            ),
        ),
        [
            ('stages.0.position', None, ALONE),
            *stage('stages.0.blocks', 2, *PAIR),
        ],
    ),
    'streams that are also projected, as in TNT': (
        lambda: Net(
            lambda m, x: m.blocks((x, m.embed(x)))[1],
            **linear('embed'),
            blocks=row(two_streams),
        ),
        [
            (f'blocks.{k}', 'blocks', why)
            for k in range(3)
            for why in (BRANCH, BRANCH, None if k else FIRST)
        ],
    ),
    'states in lists and tuples': (
        lambda: Net(
            lambda m, x: m.blocks([(x, torch.ones(()))])[-1][0],
            blocks=row(in_lists),
        ),
        stage('blocks', 3),
    ),
    'queries with positions, as in DETR': (
        lambda: Net(decoder, layers=row(queries)),
        stage('layers', 3),
    ),
    'layers in one module': (
        lambda: Net(
            lambda m, x: m.a(x) + x + F.gelu(m.b(m.a(x) + x)),
            **linear('a', 'b'),
        ),
        [('', None, ALONE)] * 2,
    ),
    # On the meta device, as PyTorch takes it apart there alone.
    'an LSTM, as in Sequencer': (
        lambda: row(recurrent).to('meta'),
        stage('', 3),
    ),
    'a block whose addition is not seen': (
        without_sum,
        [s for s in stage('', 6) if s[0] != '3']
        + [('3', '', 'no addition to its state was seen')],
    ),
    'a block alone that projects is the first one': (
        lambda: nn.Sequential(
            nn.Unflatten(2, (2, 4)),
            nn.Conv2d(6, 3, 1),
            ResNet(BasicBlock, [1, 2, 1, 1]),
        ),
        [('2.layer1.0', '2.layer1', None), ('2.layer2.1', '2.layer2', None)],
    ),
}


@pytest.mark.parametrize('key', STAGES)
def test_blocks_and_stages(key):
    build, expected = STAGES[key]
    model = build()
    found = [
        (s.name, s.stage, s.left_out)
        for s in find_steps(model, X.to(next(model.parameters()).device))
    ]
    assert [s for s in found if s[2] != PROJECTS] == expected
