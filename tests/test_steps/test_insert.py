"""What insert_steps chooses, builds and refuses."""

import pytest
import torch
import torch.nn as nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    checkpoint_wrapper,
)
from torchvision.models import resnet18
from torchvision.models.resnet import BasicBlock

from mmstepnet import insert_steps, remove_steps, step_parameters
from mmstepnet.steps import fused_blocks
from mmstepnet.steps.fused_blocks import FusedBlock
from tests.small_networks import Around, inputs, network
from tests.utils import perturb, same, seeded, steps_of

IMAGES = seeded(2, 3, 32, 32).double()
LATER = ['layer1.0', 'layer1.1', 'layer2.1', 'layer3.1', 'layer4.1']
PROJECTING = ['layer2.0', 'layer3.0', 'layer4.0']


@pytest.mark.parametrize(
    'options, wanted',
    [
        pytest.param(dict(), LATER, id='default'),
        pytest.param(
            dict(first_block=True),
            sorted(LATER + PROJECTING),
            id='first blocks',
        ),
        pytest.param(
            dict(attention='SE'), sorted(LATER + PROJECTING), id='SE'
        ),
        pytest.param(
            dict(attention='SE', first_block=False),
            LATER,
            id='SE, later blocks',
        ),
        pytest.param(dict(blocks='layer2'), ['layer2.1'], id='a stage'),
        pytest.param(
            dict(blocks=['layer1', 'layer2.0']),
            ['layer1.0', 'layer1.1', 'layer2.0'],
            id='a list',
        ),
        pytest.param(dict(blocks='layer2.*'), ['layer2.1'], id='a pattern'),
        pytest.param(
            dict(blocks=[BasicBlock, 'layer4.0']),
            [*LATER[:4], 'layer4.0', 'layer4.1'],
            id='a class and a name',
        ),
    ],
)
def test_which_blocks_get_steps(options, wanted):
    model = perturb(resnet18(num_classes=3)).double().eval()
    before, keys = model(IMAGES), set(model.state_dict())
    assert insert_steps(model, **options) == wanted
    same(model(IMAGES), before)
    new = set(model.state_dict()) - keys
    assert {key.split('.step.attention.')[0] for key in new} == set(wanted)
    with pytest.raises(ValueError, match=f'{wanted[0]}.*remove_steps'):
        insert_steps(model)
    assert remove_steps(model) == wanted
    assert torch.equal(model(IMAGES), before)
    assert type(model.layer1[0]) is BasicBlock


@pytest.mark.parametrize(
    'surroundings',
    [
        pytest.param(lambda: torch.device('meta'), id='meta'),
        pytest.param(
            lambda: torch.autocast('cpu', torch.bfloat16), id='autocast'
        ),
    ],
)
def test_surroundings_do_not_decide_which_step_stands(
    surroundings, monkeypatch
):
    monkeypatch.setattr(fused_blocks, 'TRIED', {})
    with surroundings():
        insert_steps(model := resnet18())
    assert isinstance(model.layer2[1], FusedBlock)


def test_a_backbone_is_looked_at_alone():
    """Names are those without wrappers."""
    model = nn.Module()
    model.backbone, model.head = resnet18(), resnet18()
    block = model.backbone.layer1[1]
    model.backbone.layer1[1] = checkpoint_wrapper(Around(block))
    assert insert_steps(Around(model)) == [f'backbone.{n}' for n in LATER]
    assert insert_steps(model, blocks='head.layer2') == ['head.layer2.1']


class Doubled(BasicBlock):
    def forward(self, x):
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(x + (2 * out if self.training else out))


def test_a_block_that_computes_something_else_is_not_taken_over():
    """It takes its step where its branch ends."""
    model = perturb(resnet18(num_classes=3)).double().eval()
    model.layer1[1].__class__ = Doubled
    model.layer3[1].forward = model.layer3[1].forward
    model.layer4[1].relu = nn.PReLU(512).double()  # its key stays the only one
    before = model(IMAGES)
    keys = set(model.state_dict())
    assert insert_steps(model, example=IMAGES) == LATER
    fused = [
        isinstance(model.get_submodule(name), FusedBlock) for name in LATER
    ]
    assert fused == [True, False, True, False, True]
    new = set(model.state_dict()) - keys
    assert keys < set(model.state_dict())
    assert all('step.attention.' in key for key in new)
    same(model(IMAGES), before)


@pytest.mark.parametrize('compiled', [False, True])
def test_parts_that_are_exchanged(compiled):
    """After a step was put in, and after the network was compiled."""
    timm = pytest.importorskip('timm')
    plain, model = (
        perturb(timm.create_model('resnet10t')).double().eval()
        for _ in range(2)
    )
    insert_steps(model)
    torch.compiler.reset()
    run = torch.compile(model, backend='eager') if compiled else model
    run(IMAGES)
    for one in model, plain:
        one.load_state_dict(plain.state_dict(), strict=False)
        one.layer1[0].act2 = nn.SiLU()
        one.layer1[0].drop_path = nn.Hardtanh()
    same(run(IMAGES), plain(IMAGES))
    torch.compiler.reset()


@pytest.mark.parametrize('attention', ['StepNet', 'SE', 'CBAM'])
def test_a_block_keeps_its_modules_to_itself(attention):
    """Each has one name; the norm, where it is hooked, runs in the block.

    Who counts operations or parameters by hooks counts them once.
    """
    model = resnet18().double().eval()
    own, running, inside = set(model.modules()), [], []
    insert_steps(model, attention, first_block=True)
    names = [
        name
        for name, module in model.named_modules(remove_duplicate=False)
        if module in own
    ]
    assert len(names) == len(own)
    norms = [m for m in own if isinstance(m, nn.BatchNorm2d)]
    for step in steps_of(model).values():
        step.register_forward_pre_hook(lambda *_: running.append(1))
        step.register_forward_hook(lambda *_: running.pop() and None)
    for norm in norms:
        norm.register_forward_hook(lambda *_: inside.append(bool(running)))
    model(IMAGES)
    assert inside == [False] * len(norms)


def test_a_step_that_is_wrapped_or_hooked_is_given_f(calls):
    """Whoever does so may hand something else on."""
    model = perturb(resnet18()).double().eval()
    insert_steps(model, blocks='layer1')
    wanted = model(IMAGES)
    assert len(calls) == 2
    calls.clear()
    step = model.layer1[0].step
    handle = step.register_forward_pre_hook(
        lambda step, args: (args[0], 2 * args[1], *args[2:])
    )
    doubled = model(IMAGES)
    handle.remove()
    model.layer1[0].step = checkpoint_wrapper(step)
    same(model(IMAGES), wanted)
    assert len(calls) == 2  # of the other block
    model.layer1[0].step = step
    weight, bias = model.layer1[0].bn2.parameters()
    with torch.no_grad():  # f is doubled
        weight.mul_(2), bias.mul_(2)
    same(model(IMAGES), doubled)


@pytest.mark.parametrize(
    'attention, options',
    [
        ('CBAM', {}),
        ('SGE', dict(groups=4)),
        ('FCA', dict(map_size=7)),
        ('OursDepthwiseConv', {}),
    ],
)
def test_tokens_have_no_positions(attention, options):
    with pytest.raises(ValueError, match=f'{attention} looks at positions'):
        insert_steps(
            network('tokens'), attention, example=inputs('tokens'), **options
        )
    assert (
        len(
            insert_steps(
                network('maps'), attention, example=inputs('maps'), **options
            )
        )
        == 3
    )


def test_map_sizes_by_stage():
    model = resnet18()
    sizes = {f'layer{k}': 7 * 2 ** (4 - k) for k in (1, 2, 3, 4)}
    insert_steps(model, 'FCA', map_size=sizes)
    for stage, size in sizes.items():
        assert getattr(model, stage)[1].step.attention.map_size == size


@pytest.mark.parametrize(
    'error, options, message',
    [
        pytest.param(
            ValueError,
            dict(blocks='layer5'),
            r"'layer5' .*: its blocks are layer1.0, layer1.1, layer2.0, …, "
            r'layer4.1$',
            id='no such block',
        ),
        pytest.param(
            ValueError,
            dict(blocks=['layer1', 'fc']),
            "'fc' .*: its blocks are layer1.0, layer1.1,",
            id='no block in it',
        ),
        pytest.param(
            ValueError,
            dict(model=network('maps'), blocks='3', example=inputs('maps')),
            "'3' .*: its blocks are 0, 1, 2$",
            id='no such block, found by running',
        ),
        pytest.param(
            ValueError,
            dict(init_step=-1),
            'init_step must be a positive number',
            id='a negative step',
        ),
        pytest.param(
            ValueError,
            dict(blocks='layer2.0.conv1'),
            'no block of .*conv1',
            id='a part of a block',
        ),
        pytest.param(
            ValueError,
            dict(blocks='layer2.0*'),
            'layer2.0 projects its identity',
            id='projected',
        ),
        pytest.param(
            ValueError,
            dict(layout='CHW'),
            'layout must name the axes',
            id='layout',
        ),
        pytest.param(
            ValueError,
            dict(attention='FCA', map_size={'layer1': 14}),
            'stage of layer2.0 once',
            id='map_size of one stage',
        ),
        pytest.param(
            ValueError,
            dict(attention='FCA'),
            'FCA: map_size',
            id='no map_size',
        ),
        pytest.param(
            KeyError,
            dict(attention='SD'),
            "^attention 'SD' is unknown; registered are CBAM, ECA, FCA",
            id='unknown attention',
        ),
        pytest.param(
            KeyError,
            dict(attention='stepnet'),
            "^attention 'stepnet' is unknown; did you mean 'StepNet'",
            id='an attention in small letters',
        ),
        pytest.param(
            TypeError,
            dict(model=network('tokens'), init_steps=1),
            "'init_steps'; its arguments are init_step, inputs, iebn; insert",
            id='an argument that is not there',
        ),
        pytest.param(
            TypeError,
            dict(attention='SE', block='layer1'),
            "'block'; .*reduction, init_step; insert_steps takes blocks, ",
            id='an argument of insert_steps that is not there',
        ),
        pytest.param(
            TypeError,
            dict(model='resnet18'),
            "a module is needed, .* got the text 'resnet18'",
            id='the name of a model',
        ),
        pytest.param(
            TypeError, dict(blocks=3), 'blocks must be names', id='a number'
        ),
        pytest.param(
            ValueError,
            dict(model=network('tokens')),
            'give example=',
            id='no example',
        ),
    ],
)
def test_refusals(error, options, message):
    model = options.pop('model', None) or resnet18()
    keys = set(getattr(model, 'state_dict', dict)())
    with pytest.raises(error, match=message):
        insert_steps(model, **options)
    assert set(getattr(model, 'state_dict', dict)()) == keys


def test_parameter_groups():
    model = resnet18()
    with pytest.raises(ValueError, match='insert_steps first'):
        step_parameters(model)
    insert_steps(model)
    rest, gates = step_parameters(model, lr=0.01)
    named = dict(model.named_parameters())
    assert {id(p) for p in gates['params']} == {
        id(p) for name, p in named.items() if 'step.attention.' in name
    }
    assert len(rest['params']) + len(gates['params']) == len(named)
    optimizer = torch.optim.SGD([rest, gates], lr=0.1)
    assert [g['lr'] for g in optimizer.param_groups] == [0.1, 0.01]


@pytest.mark.parametrize('kind', ['tokens', 'maps'])
def test_mode_device_and_dtype_follow_the_block(kind, caplog):
    model = network(kind)
    model[0].eval()
    insert_steps(model, example=inputs(kind))
    steps = steps_of(model)
    assert not any(s.training for n, s in steps.items() if n[0] == '0')
    assert all(s.training for n, s in steps.items() if n[0] != '0')
    assert {p.dtype for p in model.parameters()} == {torch.float64}
    meta = network(kind).to('meta')
    insert_steps(meta, example=inputs(kind))
    assert {p.device.type for p in meta.parameters()} == {'meta'}
    assert 'The gates are on the meta device' in caplog.text
    meta.to_empty(device='cpu')  # the memory of gates is at its start
    meta.load_state_dict(network(kind).state_dict(), strict=False)
    x = inputs(kind)
    assert torch.equal(meta.eval()(x), network(kind).eval()(x))
    assert meta(x[:0]).shape == x[:0].shape  # an empty batch passes


@pytest.mark.parametrize('zero', [False, True])
def test_norms_that_start_at_zero_are_named(zero, caplog):
    insert_steps(resnet18(zero_init_residual=zero), blocks='layer1')
    assert (
        'A norm of layer1.0, layer1.1 starts at zero' in caplog.text
    ) == zero


def test_what_is_left_out_is_named(caplog):
    model = network('tokens')
    model[1].forward = lambda x: x + model[1].attn(x) + model[1].mlp(x)
    assert insert_steps(model, example=inputs('tokens')) == ['0', '2']
    assert '1 adds several branches to one state' in caplog.text


@pytest.mark.parametrize(
    'options, wanted',
    [
        pytest.param(
            {},
            'StepNet in 5 blocks: layer1.0, layer1.1, layer2.1, …, layer4.1; '
            f'{6 * (2 * 64 + 128 + 256 + 512):,} parameters; starts at a step '
            'of 1',
            id='a warm start',
        ),
        pytest.param(
            dict(attention='Plain', blocks='layer1.1', init_step=None),
            'Plain in 1 block: layer1.1; 0 parameters; starts as in its paper',
            id="the paper's start",
        ),
    ],
)
def test_what_was_put_in_is_said(options, wanted, caplog):
    """Six parameters a channel."""
    caplog.set_level('INFO', 'mmstepnet')
    insert_steps(resnet18(), **options)
    assert wanted in caplog.messages
