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

from .described_blocks import Conv, Encoder, Last, Net, PostNorm
from .insertion import perturb, steps_of

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
    amid = dict(
        forward=lambda self, x: x)
    for members in (dict(forward=typed['forward']), amid):
        with pytest.raises(RuntimeError, match='source cannot be read'):
            describe(type('Typed', (Conv, ), members))


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


def test_a_config_is_no_attention():
    """OpenMMLab's form is that of the backbones alone."""
    with pytest.raises(TypeError, match='a name or a class and its arguments'):
        insert_steps(nn.Sequential(Conv(4)), dict(type='SE'))
