"""Whose ResNet StepResNet is, what it then takes, and each host alone."""

import copy
import pickle
from functools import partial

import pytest
import torch
import torch.nn as nn
from mmengine.config import ConfigDict
from mmengine.registry import init_default_scope

from mmstepnet import models
from mmstepnet.attentions import StepNet
from mmstepnet.attentions.base import normalises_by_batch
from mmstepnet.models import StepBackbone, StepResNetCIFAR
from mmstepnet.models.backbones.host import find_host
from mmstepnet.registry import MODELS
from mmstepnet.steps.modules import steps_of
from tests.programs import run_tool
from tests.utils import Adds, perturb, rounding, run, same, same_tensors

mmdet = pytest.importorskip('mmdet.models')
ALL = (0, 1, 2, 3)
NARROW = dict(base_channels=16, stem_channels=16)
DCN = dict(
    dcn=dict(type='DCNv2', deform_groups=1, fallback_on_stride=False),
    stage_with_dcn=(False, True, True, True),
)
PLUGINS = dict(
    plugins=[
        dict(
            cfg=dict(type='ContextBlock', ratio=1.0 / 4),
            stages=(False, True, True, True),
            position='after_conv3',
        )
    ]
)
SWIN = dict(
    type='mmpretrain.SwinTransformer',
    img_size=32,
    patch_size=2,
    window_size=4,
    pad_small_map=True,
    out_indices=(1,),
    arch=dict(embed_dims=12, depths=[2, 2], num_heads=[1, 2]),
)


@pytest.mark.parametrize(
    'name', ['StepResNet', 'StepResNetV1c', 'StepResNetV1d', 'StepResNeXt']
)
def test_whose(name):
    """By name, by the default scope, by mmengine's word for it."""
    build = partial(getattr(models, name), **NARROW)
    with pytest.raises(ValueError, match="host='mmdet', or build it in"):
        build(50)
    for host, out_indices, norm_eval in (
        ('mmpretrain', (3,), False),
        ('mmdet', ALL, True),
    ):
        cfg = dict(type=f'mmstepnet.{name}', depth=50, **NARROW)
        found = [build(50, host=host), MODELS.build(dict(cfg, _scope_=host))]
        init_default_scope(host)
        found.append(MODELS.build(cfg))
        for model in found:
            theirs = find_host(build.func.host_type, host)
            assert isinstance(model, build.func)
            assert isinstance(model, theirs)
            assert theirs.__module__.startswith(host)
            assert type(model).__name__ == name
            assert model.out_indices == out_indices
            assert model.norm_eval is norm_eval
    assert isinstance(
        build(50, host='mmpretrain'),
        find_host(build.func.host_type, 'mmpretrain'),
    )  # in MMDetection's scope


def test_cifars_is_the_same_under_every_host():
    hosts = [StepResNetCIFAR(20), StepResNetCIFAR(20, host='mmdet')]
    init_default_scope('mmdet')
    hosts.append(StepResNetCIFAR(20))
    assert [isinstance(m, mmdet.ResNet) for m in hosts] == [False, True, True]
    state = perturb(hosts[0]).state_dict()
    x = torch.randn(2, 3, 32, 32)
    results = []
    for model in hosts:
        assert not model.norm_eval and model.out_indices == (2,)
        model.load_state_dict(state)
        results.append(run(model.train(), x))
    for other in results[1:]:
        for got, expected in zip(other, results[0]):
            same_tensors(got, expected, exact=True)


@pytest.mark.parametrize('training', [False, True])
@pytest.mark.parametrize(
    'host, kind, kwargs',
    [
        ('mmpretrain', 'ResNet', dict(depth=18, out_indices=ALL)),
        ('mmpretrain', 'ResNet', dict(depth=50)),
        ('mmpretrain', 'ResNeXt', dict(depth=50, groups=8, width_per_group=6)),
        ('mmdet', 'ResNeXt', dict(depth=50, groups=8, base_width=6)),
        ('mmdet', 'ResNet', dict(depth=50, **DCN)),
        ('mmdet', 'ResNet', dict(depth=50, **PLUGINS)),
        (
            'mmdet',
            'ResNet',
            dict(
                depth=50,
                style='caffe',
                frozen_stages=1,
                norm_cfg=dict(type='BN', eps=1e-3),
            ),
        ),
        (
            'mmdet',
            'ResNet',
            dict(
                depth=50,
                base_channels=32,
                num_stages=3,
                strides=(1, 2, 1),
                dilations=(1, 1, 2),
                out_indices=(2,),
            ),
        ),
        # At an output stride of 8, as under DeepLabV3 and PSPNet.
        *(
            (
                'mmseg',
                'ResNet',
                dict(
                    depth=depth,
                    norm_cfg=dict(type='BN'),
                    norm_eval=False,
                    strides=(1, 2, 1, 1),
                    dilations=(1, 1, 2, 4),
                    contract_dilation=depth == 50,
                ),
            )
            for depth in (18, 50)
        ),
    ],
    ids=str,
)
def test_plain_is_the_hosts(host, kind, kwargs, training):
    """To the bit; a warm start in some stages changes none of it."""
    theirs = getattr(pytest.importorskip(f'{host}.models'), kind)
    kwargs = NARROW | kwargs
    theirs = perturb(theirs(**copy.deepcopy(kwargs)))
    theirs.train(training)

    def build(**options):
        ours = getattr(models, f'Step{kind}')(
            host=host, **options, **copy.deepcopy(kwargs)
        )
        missing = ours.load_state_dict(theirs.state_dict(), strict=False)
        assert not missing.unexpected_keys
        assert all('.step.attention.' in key for key in missing.missing_keys)
        return ours.train(training)

    plain = build(attention=None)
    stepped = build(
        attention=dict(type='StepNet', init_step=1.0),
        blocks=['layer2', 'layer3'],
    )
    x = torch.randn(2, 3, 65, 48)
    single = run(theirs, x)
    for got, expected in zip(run(plain, x), single):
        same_tensors(got, expected, exact=True)
    with torch.no_grad():
        ours = stepped(x)
        theirs.double(), stepped.double()
        exact = theirs(x.double())
        same(stepped(x.double()), exact)
    for key, out in enumerate(exact):
        assert rounding(ours[key], out) <= 2 * rounding(single[0][key], out)


def passes(host):
    """Networks of a host, an input, and what they return for it."""
    x = torch.randn(1, 3, 64, 64).double()
    built = (
        [StepBackbone(dict(SWIN))]
        if host == 'mmpretrain'
        else [
            models.StepResNet(18, preact=preact, host='mmdet', base_channels=8)
            for preact in (False, True)
        ]
    )
    for model in built:
        yield model, x, perturb(model).double().eval()(x)[-1]


@pytest.mark.parametrize('host', ['mmdet', 'mmpretrain'])
def test_copies_and_pickles(host):
    """And in a process of its own, below."""
    for model, x, expected in passes(host):
        for twin in copy.deepcopy(model), pickle.loads(pickle.dumps(model)):
            assert type(twin) is type(model)
            assert torch.equal(twin(x)[-1], expected)


def test_step_backbone_converts_what_the_host_does():
    """MMPretrain's Swin asks whether it is one itself."""
    host = perturb(MODELS.build(dict(SWIN)))
    model = StepBackbone(dict(SWIN))
    assert model.__class__ is type(host)
    old = {
        key.replace('norm1.', 'norm.')
        if key.startswith('norm1.')
        else key: value
        for key, value in host.state_dict().items()
    }
    missing, unexpected = model.load_state_dict(old, strict=False)
    assert not unexpected
    assert all('_step.attention.' in key for key in missing)
    host.double().eval(), model.double().eval()
    x = torch.rand(2, 3, 32, 32).double()
    same(model(x), host(x))


@pytest.mark.parametrize(
    'build',
    [
        lambda attention, frozen, **kwargs: StepBackbone(
            dict(
                type='mmdet.ResNet', depth=50, frozen_stages=frozen, **NARROW
            ),
            attention,
            **kwargs,
        ),
        lambda attention, frozen, **kwargs: models.StepResNet(
            50,
            host='mmpretrain',
            attention=attention,
            frozen_stages=frozen,
            **NARROW,
            **kwargs,
        ),
    ],
    ids=['StepBackbone', 'StepResNet'],
)
def test_gates_that_cannot_leave_their_start_are_named(build, recwarn):
    """A frozen stage freezes its attentions too."""
    warm = dict(type='StepNet', init_step=1.0)
    with pytest.warns(UserWarning, match='layer1.1, layer1.2 are frozen'):
        model = build(warm, 1)
    assert model.train() is model
    gates = [model.layer1[1].step.attention, model.layer3[1].step.attention]
    assert [gate.ie_bias.requires_grad for gate in gates] == [False, True]
    assert not gates[0].training
    recwarn.clear()
    build(warm, 1, blocks=['layer2', 'layer3', 'layer4'])
    build(warm, 0)
    build(dict(type='StepNet', init_step=None), 2)  # as trained, it acts
    assert not recwarn.list


@pytest.mark.parametrize('frozen', [-1, 0, 1])
@pytest.mark.parametrize(
    'build',
    [
        lambda config: StepBackbone(dict(config, type='VisionTransformer')),
        lambda config: models.StepVisionTransformer(**config),
    ],
    ids=['StepBackbone', 'StepVisionTransformer'],
)
def test_freezes_what_the_host_does(build, frozen):
    """MMPretrain's ViT freezes its embeddings only where it is told to."""
    init_default_scope('mmpretrain')
    config = dict(
        arch='deit-tiny', img_size=32, patch_size=16, frozen_stages=frozen
    )
    theirs = MODELS.build(dict(config, type='VisionTransformer'))
    ours = build(config).train()
    got = dict(ours.named_parameters())
    for name, p in theirs.named_parameters():
        assert name not in got or got[name].requires_grad == p.requires_grad
    for place, layer in enumerate(ours.layers):
        gates = [m for m in layer.modules() if isinstance(m, StepNet)]
        assert gates
        for gate in gates:
            assert normalises_by_batch(gate, gate.bn) == (place >= frozen)
            assert gate.ie_bias.requires_grad == (place >= frozen)


@MODELS.register_module(force=True)
def joints():
    """Takes the joints of a person in each frame, as DSTFormer does."""
    return nn.Sequential(
        nn.Flatten(0, 1),
        nn.Linear(3, 8),
        nn.Sequential(*(Adds(nn.Linear(8, 8)) for _ in range(2))),
    )


def test_a_backbone_of_other_inputs():
    """Whose inputs cannot be made up: the config says what it takes."""
    model = StepBackbone(
        dict(type='mmstepnet.joints'), example=(2, 4, 17, 3), layout='NLC'
    )
    assert all(map(steps_of, model[2]))
    assert model(torch.rand(3, 4, 17, 3)).shape == (12, 17, 8)


def test_pretrained_of_a_segmentor(tmp_path):
    """Its own argument, as UPerNet's configs have it, is handed down."""
    pytest.importorskip('mmseg', reason='needs requirements/tests-*.txt')
    init_default_scope('mmseg')
    backbone = dict(type='ResNetV1c', depth=18, norm_cfg=dict(type='BN'))
    plain, path = perturb(MODELS.build(backbone)), str(tmp_path / 'plain.pth')
    torch.save(dict(state_dict=plain.state_dict()), path)
    model = MODELS.build(
        ConfigDict(
            type='EncoderDecoder',
            pretrained=path,
            backbone=dict(type='mmstepnet.StepBackbone', backbone=backbone),
            decode_head=dict(
                type='FCNHead', in_channels=512, channels=8, num_classes=2
            ),
        )
    )
    model.init_weights()
    found = model.backbone.state_dict()
    assert len(found) > len(plain.state_dict())
    for key, value in plain.state_dict().items():
        assert torch.equal(found[key], value)


def dropout(kind):
    return lambda: getattr(models, kind)(
        'deit-tiny', layer_cfgs=dict(attn_drop_rate=0.1)
    )


RESNET = partial(models.StepResNet, host='mmpretrain')
REFUSED = {
    'no host': (
        lambda: models.StepResNet(18),
        ValueError,
        'default scope is None',
    ),
    'no such host': (
        lambda: models.StepResNet(18, host='mmnothing'),
        ValueError,
        "got host='mmnothing'",
    ),
    'preact': (
        lambda: RESNET(18, zero_init_residual=True, preact=True),
        ValueError,
        'zero_init_residual',
    ),
    'preact and DCN': (
        lambda: models.StepResNet(50, preact=True, host='mmdet', **DCN),
        ValueError,
        'preact=True has',
    ),
    'preact of ResNeXt': (
        lambda: models.StepResNeXt(50, preact=True, host='mmdet'),
        ValueError,
        'preact',
    ),
    'a name': (lambda: RESNET(18, attention='SE'), TypeError, "got 'SE'"),
    'None': (
        lambda: StepBackbone(dict(type='mmdet.ResNet', depth=18), None),
        TypeError,
        'attention must be a dict',
    ),
    'no example': (
        lambda: StepBackbone(dict(type='mmstepnet.joints')),
        ValueError,
        'give example=',
    ),
    **{
        kind: (dropout(kind), ValueError, 'attn_drop 0.1.*drop_rate')
        for kind in ('StepVisionTransformer', 'PropagationVisionTransformer')
    },
}


@pytest.mark.parametrize('name', REFUSED)
def test_refused(name):
    """By the host, but where it would build something else."""
    call, error, text = REFUSED[name]
    with pytest.raises(error, match=text):
        call()


ALONE = """
import os, sys, torch
from mmengine.registry import MODELS, init_default_scope

# A process for each, behind what they all import.
for k in range(1, len(sys.argv), 3):
    host, absent, path = sys.argv[k:k + 3]
    child = os.fork()
    if child == 0:
        break
    _, status = os.waitpid(child, 0)
    assert status == 0, (host, absent)
else:
    sys.exit()

sys.modules[absent] = None
for model, x, expected in torch.load(path, weights_only=False):
    torch.testing.assert_close(  # not fused
        model(x)[-1], expected, rtol=1e-10, atol=1e-10)
init_default_scope(host)
for cfg in (dict(type='mmstepnet.StepResNet', depth=18),
            dict(type='mmstepnet.StepResNetCIFAR', depth=20),
            dict(type='mmstepnet.StepBackbone', backbone=dict(
                type='ResNet', depth=18))):
    model = MODELS.build(cfg)
    model.init_weights()
    assert model.train()(torch.randn(2, 3, 32, 32))[-1].isfinite().all()
    assert any(host in cls.__module__ for cls in type(model).__mro__)
try:
    MODELS.build(dict(type='mmstepnet.StepVisionTransformer'))
except ImportError as error:
    assert 'needs MMPretrain' in str(error), error
else:
    assert host == 'mmpretrain'
"""


def test_each_host_suffices_alone(tmp_path):
    """Also beside a package with which MMPretrain's models fail.

    A pickle loads in a process that knows nothing of it.
    """
    cases = []
    for host, absent in (
        ('mmdet', 'mmpretrain'),
        ('mmdet', 'mmpretrain.models'),
        ('mmpretrain', 'mmdet'),
    ):
        path = tmp_path / f'{host}.pt'
        torch.save(list(passes(host)), path)
        cases += host, absent, path
    run_tool('-c', ALONE, *cases)
