"""What insert_steps does and refuses, on small blocks of our own."""

import copy

import pytest
import torch
import torch.nn as nn
import torch.utils.checkpoint as cp
from torchvision.models import resnet18

from mmstepnet import insert_steps, remove_steps, step_parameters
from mmstepnet.attentions import ATTENTIONS, CBAM, MapAttention
from mmstepnet.blocks import (
    KNOWN_BLOCKS,
    StepDescription,
    describe,
    fingerprint,
    register_block,
)
from mmstepnet.steps import ResidualStep
from mmstepnet.stiffness import TrajectoryRecorder
from tests.utils import not_on_torch_21

from .insertion import perturb, steps_of


class Conv(nn.Module):
    """x + norm(conv(x)), rectified, with a projection where asked for."""

    def __init__(self, width, projects=False, identity=True):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.down = nn.Conv2d(width, width, 1) if projects else None
        self.act = nn.PReLU()
        self.identity = identity

    def forward(self, x):
        f = self.norm(self.conv(x))
        if not self.identity:
            return self.act(f)
        return self.act(f + (x if self.down is None else self.down(x)))


class Encoder(nn.Module):
    """x + attn(x), then x + mlp(x), with a gain given from outside."""

    def __init__(self, width):
        super().__init__()
        self.attn = nn.Linear(width, width)
        self.mlp = nn.Linear(width, width)

    def forward(self, x, gain):
        x = x + self.attn(x) * gain
        return x + self.mlp(x)


class Last(Encoder):
    """The same with channels last, (N, H, W, C)."""


register_block(
    Conv,
    StepDescription(
        lambda block, x: block.conv(x), width='norm', norm='norm',
        identity='down', activation='act'),
    residual='identity')
for cls, layout in ((Encoder, 'NLC'), (Last, 'NHWC')):
    register_block(
        cls,
        StepDescription(
            lambda block, x, gain: block.attn(x) * gain, width='attn',
            layout=layout, name='attn_step'),
        StepDescription(
            lambda block, x: block.mlp(x), width='mlp', layout=layout,
            name='mlp_step'))


class PostNorm(nn.Module):
    """norm(x + attn(x)), then norm(x + mlp(x))."""

    def __init__(self, width):
        super().__init__()
        self.attn, self.mlp = (nn.Linear(width, width) for _ in range(2))
        self.norm1, self.norm2 = (nn.LayerNorm(width) for _ in range(2))

    def forward(self, x):
        x = self.norm1(x + self.attn(x))
        return self.norm2(x + self.mlp(x))


register_block(
    PostNorm, *(
        StepDescription(
            lambda block, x, part=part: getattr(block, part)(x), width=part,
            layout='NLC', activation=f'norm{k}', name=f'{part}_step')
        for k, part in ((1, 'attn'), (2, 'mlp'))))


class Deep(nn.Module):
    """Two branches with stochastic depth."""

    def __init__(self, width):
        super().__init__()
        self.attn = nn.Linear(width, width)
        self.drop, self.drop2 = nn.Dropout(1.0), nn.Dropout(1.0)
        self.mlp = nn.Linear(width, width)

    def forward(self, x):
        f = self.attn(x)
        x = x + (f if self.drop is None else self.drop(f))
        return x + self.drop2(self.mlp(x))


register_block(
    Deep, *(
        StepDescription(
            lambda block, x, part=part: getattr(block, part)(x),
            width=part, layout='NLC', drop_path=drop, name=f'{part}_step')
        for part, drop in (('attn', 'drop'), ('mlp', 'drop2'))))


class Net(nn.Module):

    def __init__(self):
        super().__init__()
        self.layer1 = nn.Sequential(Conv(8, projects=True), Conv(8))
        self.layer2 = nn.Sequential(
            Conv(8, projects=True), Conv(8), Conv(8, identity=False))

    def forward(self, x):
        return self.layer2(self.layer1(x))


X = torch.randn(2, 8, 6, 6, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize('options, wanted', [
    (dict(), ['layer1.1', 'layer2.1']),
    (dict(first_block=True),
     ['layer1.0', 'layer1.1', 'layer2.0', 'layer2.1']),
    (dict(attention='SE'), ['layer1.0', 'layer1.1', 'layer2.0', 'layer2.1']),
    (dict(attention='SE', first_block=False), ['layer1.1', 'layer2.1']),
    (dict(blocks='layer2'), ['layer2.1']),
    (dict(blocks=['layer1', 'layer2.0']), ['layer1.1', 'layer2.0']),
    (dict(blocks='layer2.*'), ['layer2.1']),
    (dict(blocks=[Conv, 'layer1.0']), ['layer1.0', 'layer1.1', 'layer2.1']),
])
def test_which_blocks_get_steps(options, wanted):
    model = perturb(Net()).eval()
    before, keys = model(X), set(model.state_dict())
    assert insert_steps(model, **options) == wanted
    torch.testing.assert_close(model(X), before)
    new = set(model.state_dict()) - keys
    assert {key.split('.step.attention.')[0] for key in new} == set(wanted)
    assert remove_steps(model) == wanted
    assert torch.equal(model(X), before)


def test_a_backbone_is_looked_at_alone():
    model = nn.Module()
    model.backbone, model.head = Net(), Net()
    assert insert_steps(model) == ['backbone.layer1.1', 'backbone.layer2.1']
    assert insert_steps(model, blocks='head.layer1') == ['head.layer1.1']


@pytest.mark.parametrize('cls', [Encoder, Last])
@pytest.mark.parametrize('attention', ['SE', 'StepNet', 'ECA', 'SRM'])
def test_the_layouts_pool_over_positions(cls, attention):
    """Against the two steps by hand, on maps with channels first."""
    block = perturb(cls(8))
    shape = (2, 5, 8) if cls is Encoder else (2, 3, 4, 8)
    x = torch.randn(shape)
    insert_steps(nn.Sequential(block), attention, init_step=None)
    perturb(block).eval()
    out = block(x, gain=2.0)
    assert out.is_contiguous()

    as_map = x.flatten(1, -2).transpose(1, 2)[..., None].contiguous()

    def linear(layer, maps):
        return torch.einsum('nclk,dc->ndlk', maps, layer.weight) + (
            layer.bias[:, None, None])

    for step, layer, gain in ((block.attn_step, block.attn, 2.0),
                              (block.mlp_step, block.mlp, 1.0)):
        as_map = step(as_map, gain * linear(layer, as_map))
    wanted = as_map[..., 0].transpose(1, 2).reshape(shape)
    torch.testing.assert_close(out, wanted)


@pytest.mark.parametrize('attention', ['CBAM', 'SGE', 'FCA',
                                       'OursDepthwiseConv'])
def test_tokens_have_no_positions(attention):
    options = dict(map_size=7) if attention == 'FCA' else {}
    with pytest.raises(ValueError, match=f'{attention} looks at positions'):
        insert_steps(nn.Sequential(Encoder(8)), attention, **options)
    assert insert_steps(nn.Sequential(Last(8)), attention, **options) == ['0']


def test_tokens_refuse_map_attentions_of_any_name(monkeypatch):

    class Named(CBAM):
        pass

    class Pools(MapAttention):
        needs_positions = False

        def forward(self, x, f):
            return f.mean((2, 3), keepdim=True)

    for cls in (Named, Pools):
        monkeypatch.setitem(ATTENTIONS, cls.__name__, cls)
    with pytest.raises(ValueError, match='Named looks at positions'):
        insert_steps(nn.Sequential(Encoder(8)), Named)
    for name in ('OursMeanStd', 'Plain', Pools):
        assert insert_steps(nn.Sequential(Encoder(8)), name) == ['0']


def test_map_sizes_by_stage():
    model = Net()
    insert_steps(model, 'FCA', map_size={'layer1': 14, 'layer2': 7})
    assert model.layer1[1].step.attention.map_size == 14
    assert model.layer2[1].step.attention.map_size == 7
    with pytest.raises(ValueError, match='stage of layer2.0 once'):
        insert_steps(Net(), 'FCA', map_size={'layer1': 14})
    with pytest.raises(ValueError, match='FCA: map_size'):
        insert_steps(Net(), 'FCA')


@pytest.mark.parametrize('options, message', [
    (dict(blocks='layer3'), "blocks='layer3' matches no module"),
    (dict(first_block='no'), 'first_block must be True, False or None'),
    (dict(init_step=-1), 'init_step must be a positive number'),
    (dict(blocks='layer2.2'), 'layer2.2 adds no identity'),
    (dict(blocks=['layer1.0*', 'layer2.2*']), 'none got a.*layer2.2 add none'),
])
def test_bad_arguments(options, message):
    model = Net()
    with pytest.raises(ValueError, match=message):
        insert_steps(model, **options)
    assert not steps_of(model)


def test_twice():
    model = Net()
    insert_steps(model)
    with pytest.raises(ValueError, match='layer1.1.*remove_steps'):
        insert_steps(model)
    remove_steps(model)
    insert_steps(model)


def test_another_forward_is_not_the_described_one():

    class Other(Conv):

        def forward(self, x):
            return self.act(x - self.norm(self.conv(x)))

    class Same(Conv):
        pass

    assert describe(Same) is describe(Conv) is not None
    with pytest.raises(RuntimeError, match=fingerprint(Other.forward)) as e:
        describe(Other)
    assert fingerprint(Conv.forward) in str(e.value)
    with pytest.raises(ValueError, match='give example='):
        insert_steps(nn.Sequential(Other(8)))


def test_a_forward_without_source_is_not_the_described_one():
    typed = {}
    exec('def forward(self, x):\n    return x', typed)
    typed = type('Typed', (Conv, ), dict(forward=typed['forward']))
    with pytest.raises(RuntimeError, match='source cannot be read'):
        describe(typed)


def test_registering():
    step = StepDescription(lambda block, x: x, width='norm')
    with pytest.raises(ValueError, match='has a description already'):
        register_block(Conv, step)
    with pytest.raises(TypeError, match='one StepDescription'):
        register_block('some.Block')
    with pytest.raises(ValueError, match='a name of its own'):
        register_block('some.Block', step, step)
    with pytest.raises(ValueError, match='layout'):
        StepDescription(lambda block, x: x, width='norm', layout='CNHW')
    assert 'some.Block' not in KNOWN_BLOCKS


def test_parameter_groups():
    model = Net()
    with pytest.raises(ValueError, match='insert_steps first'):
        step_parameters(model)
    insert_steps(model)
    rest, gates = step_parameters(model, lr=0.01)
    named = dict(model.named_parameters())
    assert {id(p) for p in gates['params']} == {
        id(p) for name, p in named.items() if 'step.attention.' in name}
    assert len(rest['params']) + len(gates['params']) == len(named)
    optimizer = torch.optim.SGD([rest, gates], lr=0.1)
    assert [g['lr'] for g in optimizer.param_groups] == [0.1, 0.01]


def test_mode_device_and_dtype_follow_the_block():
    model = Net().double()
    model.layer1.eval()
    insert_steps(model)
    assert not model.layer1[1].step.training
    assert model.layer2[1].step.training
    assert {p.dtype for p in model.parameters()} == {torch.float64}
    with torch.device('meta'):
        meta = Net()
    insert_steps(meta)
    assert {p.device.type for p in meta.parameters()} == {'meta'}


def test_an_activation_with_weights_keeps_its_key():
    model = Net()
    keys = set(model.state_dict())
    insert_steps(model)
    new = set(model.state_dict()) - keys
    assert all('.step.attention.' in key for key in new)


def swap_children(module):
    """The usual way to exchange activations, which goes by names."""
    for name, child in module.named_children():
        if isinstance(child, nn.ReLU):
            setattr(module, name, nn.LeakyReLU(0.1))
        else:
            swap_children(child)


def swap_unique(model):
    """The other one, which sees a shared module once."""
    for name, child in list(model.named_modules()):
        if isinstance(child, nn.ReLU):
            owner, _, name = name.rpartition('.')
            setattr(model.get_submodule(owner), name, nn.LeakyReLU(0.1))


def test_an_activation_that_is_exchanged_later():
    """It is applied, once, also where it has weights."""
    x = torch.randn(2, 3, 32, 32)
    plain = perturb(resnet18()).eval()
    swap_unique(plain)
    wanted = plain(x)
    for swap in (swap_children, swap_unique):
        model = resnet18().eval()
        model.load_state_dict(plain.state_dict())
        insert_steps(model)
        swap(model)
        torch.testing.assert_close(model(x), wanted)
        remove_steps(model)
        torch.testing.assert_close(model(x), wanted)
    model = resnet18().eval()
    model.load_state_dict(plain.state_dict())
    insert_steps(model)
    keys = set(model.state_dict())
    for block in (model.layer1[0], model.layer1[1]):
        block.relu = nn.PReLU(init=0.1)
    model(x)
    assert set(model.state_dict()) - keys == {
        'layer1.0.relu.weight', 'layer1.1.relu.weight'}
    swap_unique(model)
    torch.testing.assert_close(model(x), wanted)


@pytest.mark.parametrize('other', [nn.Identity(), nn.Dropout(0.0), nn.Tanh()])
def test_a_stochastic_depth_that_is_exchanged_later(other):
    """As by who switches it off in a part of a network."""
    plain = Deep(6)
    model = nn.Sequential(copy.deepcopy(plain))
    insert_steps(model)
    x = torch.randn(2, 5, 6)
    torch.testing.assert_close(model(x), x)
    plain.drop = plain.drop2 = model[0].drop = model[0].drop2 = other
    wanted = plain(x)
    assert (wanted - x).abs().max() > 0.1
    model = copy.deepcopy(model)
    for _ in range(2):
        torch.testing.assert_close(model(x), wanted)
    remove_steps(model)
    torch.testing.assert_close(model(x), wanted)
    assert type(model[0].drop2) is type(other)


def test_a_stochastic_depth_that_is_taken_away():
    """By None, which hosts such as timm may have in its place."""
    plain = Deep(6)
    model = copy.deepcopy(plain)
    insert_steps(model)
    plain.drop = model.drop = None
    x = torch.randn(2, 5, 6)
    wanted = plain(x)
    assert (wanted - x).abs().max() > 0.1
    torch.testing.assert_close(model(x), wanted)


def test_a_forward_that_was_set_on_a_block():
    model = resnet18()
    model.layer2[1].forward = model.layer2[1].forward
    keys = set(model.state_dict())
    with pytest.raises(RuntimeError, match='BasicBlock has a forward of its'):
        insert_steps(model)
    assert set(model.state_dict()) == keys
    assert insert_steps(model, blocks=['layer1', 'layer3']) == [
        'layer1.0', 'layer1.1', 'layer3.1']
    model.layer3[1].forward = model.layer3[1].forward
    with pytest.raises(RuntimeError, match='Block with a step has a forward'):
        remove_steps(model)
    assert len(steps_of(model)) == 3
    del model.layer3[1].forward
    assert len(remove_steps(model)) == 3


def test_arguments_by_name():
    block = Encoder(6)
    x = torch.randn(2, 5, 6)
    wanted = block(x, gain=2.0)
    model = nn.Sequential(block)
    insert_steps(model)
    for given in (dict(gain=2.0, x=x), dict(x=x, gain=2.0)):
        torch.testing.assert_close(model[0](**given), wanted)
    with pytest.raises(TypeError, match="misses its first argument, 'x'"):
        model[0](gain=2.0)


def test_a_named_block_without_an_identity():
    model = nn.Sequential(Conv(4, identity=False), Conv(4))
    with pytest.raises(ValueError, match='0 adds no identity'):
        insert_steps(model, blocks=['0', '1'])
    assert insert_steps(model, blocks='*') == ['1']


@pytest.mark.parametrize('reentrant', [False, True])
def test_checkpointing_from_outside(reentrant):
    model = perturb(Net())
    insert_steps(model, init_step=None)
    perturb(model)
    twin = copy.deepcopy(model)
    x = X.clone().requires_grad_()
    model(x).square().sum().backward()
    y = X.clone().requires_grad_()
    out = y
    for layer in (twin.layer1, twin.layer2):
        out = cp.checkpoint(layer, out, use_reentrant=reentrant)
    out.square().sum().backward()
    torch.testing.assert_close(y.grad, x.grad)
    for p, q in zip(twin.parameters(), model.parameters()):
        torch.testing.assert_close(p.grad, q.grad)


@not_on_torch_21('cannot export what Dynamo knows no class attribute of')
def test_export():
    model = perturb(Net()).eval()
    insert_steps(model)
    perturb(model)
    exported = torch.export.export(model, (X, )).module()
    torch.testing.assert_close(exported(X), model(X))


def test_autocast():
    model = perturb(Net()).eval()
    insert_steps(model)
    with torch.autocast('cpu', torch.bfloat16):
        half = model(X)
    assert torch.isfinite(half).all()
    torch.testing.assert_close(half.float(), model(X), rtol=0.1, atol=0.3)


def relative(x, out):
    return ((out - x).flatten(1).norm(dim=1) / x.flatten(1).norm(dim=1)
            ).detach()


@pytest.mark.parametrize('stepped', [False, True])
def test_what_a_block_returns_is_measured(stepped):
    """Activations with weights stand behind the step, under their own key."""
    model = perturb(nn.Sequential(PostNorm(8), PostNorm(8))).eval()
    tokens = torch.randn(2, 5, 8)
    state, block = model[0](tokens), model[1]
    between = block.norm1(state + block.attn(state))
    convs = perturb(Net()).eval()
    before = convs.layer1[0](X)
    wanted = [relative(state, between), relative(between, block(state)),
              relative(before, convs.layer1[1](before))]
    if stepped:
        insert_steps(model)
        insert_steps(convs)
    with TrajectoryRecorder(model) as tokenwise, torch.no_grad():
        model(tokens)
    with TrajectoryRecorder(convs, 'layer1.*') as mapwise, torch.no_grad():
        convs(X)
    assert tokenwise.blocks == ['1.attn_step', '1.mlp_step']
    for recorder, expected in ((tokenwise, wanted[:2]), (mapwise, wanted[2:])):
        torch.testing.assert_close(
            recorder.record['returned'], torch.stack(expected, 1))


def test_steps_are_observed():
    model = perturb(Net()).eval()
    insert_steps(model, init_step=None)
    perturb(model)
    seen = []
    for name, step in steps_of(model).items():
        assert isinstance(step, ResidualStep)
        act = model.get_submodule(name.removesuffix('.step')).act
        step.observe(lambda step, x, f, dt, out, act=act: seen.append(float(
            (act(x + f * dt) - out).detach().abs().max())))
    model(X)
    assert len(seen) == 2 and max(seen) < 1e-5


class Parts(nn.Module):
    """Uses a block's parts and never the block, as MMAction2's TABlock."""

    def __init__(self):
        super().__init__()
        self.block = Conv(8)

    def forward(self, x):
        return x + self.block.norm(self.block.conv(x))


class Frames(nn.Sequential):
    """Of eight frames a sample, as networks of videos."""

    def forward(self, x):
        return super().forward(x.view(-1, 8, *x.shape[1:]).flatten(0, 1))


@pytest.mark.parametrize('cls', [nn.Sequential, Frames])
def test_blocks_that_are_never_called(cls, caplog):
    """Their gates would stay dead."""
    x = torch.zeros(8, 8, 6, 6)
    model = cls(Conv(8), Parts(), Conv(8))
    model.init_cfg, model.img_size = None, 6  # as a module of MMEngine
    twin = copy.deepcopy(model)
    assert insert_steps(model) == ['0', '2']
    assert '1.block: no pass calls' in caplog.text
    model(x).sum().backward()
    for step in steps_of(model).values():
        assert all(p.grad is not None for p in step.attention.parameters())
    for options in (dict(), dict(example=x)):
        with pytest.raises(ValueError, match='1.block: no pass calls the f'):
            insert_steps(twin, blocks=['1.block'], **options)
    assert not steps_of(twin)
    alone = nn.Sequential(Parts())
    alone.init_cfg, alone.img_size = None, 6
    with pytest.raises(ValueError, match='no pass calls the forward of'):
        insert_steps(alone)


class NotResidual(nn.Module):
    """Adds nothing to its state that it was given."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (nn.Conv2d(8, 8, 1) for _ in range(2))

    def forward(self, x):
        return self.first(x) + self.second(x)


@pytest.mark.parametrize('options', [
    dict(), dict(example=torch.rand(1, 8, 6, 6)),
    dict(example=torch.rand(1, 8, 6, 6), blocks='4')])
def test_what_is_said_where_no_block_is_found(options):
    """The model's own blocks, what was seen in them and the way out."""
    model = nn.Sequential(*(NotResidual() for _ in range(30)))
    with pytest.raises(ValueError) as raised:
        insert_steps(model, **options)
    message = str(raised.value)
    assert len(message) <= 900
    assert 'NotResidual: 30, such as 0' in message
    assert ('register_block' if options else 'example=') in message
    assert not options or 'no residual step of Sequential' in message


def test_keys_where_every_activation_becomes_one_with_weights():
    """No key or parameter of a step's own copy, before a forward either."""
    model = resnet18()
    insert_steps(model)

    def swap(module):
        for name, child in module.named_children():
            if isinstance(child, nn.ReLU):
                setattr(module, name, nn.PReLU())
            else:
                swap(child)

    swap(model)
    twin = copy.deepcopy(model)
    keys = list(model.state_dict())
    assert [n for n, _ in twin.named_parameters() if 'relu' in n
            or 'activation' in n] == [k for k in keys if 'relu' in k] != []
    assert not any('step.activation' in key for key in keys)
    model(torch.rand(2, 3, 32, 32))
    assert list(model.state_dict()) == keys
