"""Attentions inside StepResNet and StepResNetCIFAR."""

from functools import partial

import pytest
import torch

from mmstepnet import models, steps
from mmstepnet.attentions import FCA, Attention
from mmstepnet.models import StepResNetCIFAR
from tests.test_attentions.conftest import ATTENTIONS
from tests.utils import perturb

StepResNet = partial(models.StepResNet, host='mmpretrain')

# What makes the gate constant at a warm start.
GATE_START = {
    'SE': ('fc2.weight', 'fc2.bias'),
    'CBAM': ('fc2.weight', 'fc2.bias', 'attention.bn.weight',
             'attention.bn.bias'),
    'ECA': ('conv.weight', ),
    'SEM': ('fc2.weight', 'fc2.bias', 'eca.conv.weight', 'ie_weight',
            'ie_bias'),
    'SRM': ('attention.bn.weight', 'attention.bn.bias'),
    'FCA': ('fc2.weight', 'fc2.bias'),
    'SGE': ('attention.weight', 'attention.bias'),
    'StepNet': ('ie_weight', 'ie_bias'),
    'StepNet-cited': ('attention.weight', 'attention.bias'),
}

WITH_HIDDEN_LAYER = ('SE', 'CBAM', 'SEM', 'FCA', 'OursSharedMLP')

BACKBONES = {
    'cifar20': (partial(StepResNetCIFAR, 20), 32),
    'resnet18': (partial(StepResNet, 18), 64),
    'resnet50': (partial(StepResNet, 50), 64),
}


@pytest.fixture(params=[
    *(('cifar20', name) for name in ATTENTIONS),
    # Which first blocks and maps they have, the hosts' decide.
    *((backbone, name) for backbone in ('resnet18', 'resnet50')
      for name in ('StepNet', 'FCA'))], ids='-'.join)
def case(request):
    """A backbone's builder, images for it, and an attention."""
    backbone, name = request.param
    build, side = BACKBONES[backbone]
    return build, torch.randn(4, 3, side, side), ATTENTIONS[name]


def key_of_attention(name):
    return name.partition('.step.attention.')[2]


def test_every_parameter_learns(case):
    build, images, cfg = case
    if cfg['type'] in WITH_HIDDEN_LAYER:
        # One hidden unit for 16 channels can be dead for a whole batch.
        cfg = dict(cfg, reduction=2)
    model = perturb(build(attention=cfg)).train()
    out, = model(images)
    (out * torch.randn_like(out)).sum().backward()
    without = [
        name for name, parameter in model.named_parameters()
        if not parameter.grad.isfinite().all() or not parameter.grad.any()
    ]
    assert not without
    carriers = [m for m in model.modules() if isinstance(m, Attention)]
    projecting = sum(block.downsample is not None
                     for _, block in model.residual_blocks())
    blocks = len(list(model.residual_blocks()))
    if not carriers[0].first_block:
        blocks -= projecting
    # CBAM holds an SE of its own, SEM an ECA too.
    assert len(carriers) == blocks * dict(CBAM=2, SEM=3).get(cfg['type'], 1)


@pytest.mark.parametrize('training', [False, True])
def test_warm_start_keeps_the_plain_network(case, training):
    build, images, cfg = case
    kind = cfg['type']
    kind = 'StepNet' if kind.startswith('Ours') else kind
    keep = GATE_START[kind + '-cited' if 'iebn' in cfg else kind]
    plain = perturb(build(attention=None), seed=1).train(training)
    model = build(attention=dict(cfg, init_step=1.0))
    start = {
        key: value.clone()
        for key, value in model.state_dict().items() if key.endswith(keep)
    }
    perturb(model).load_state_dict(start, strict=False)
    keys = model.load_state_dict(plain.state_dict(), strict=False)
    assert not keys.unexpected_keys
    assert keys.missing_keys
    assert all(key_of_attention(key) for key in keys.missing_keys)

    # The fused path rounds a batch's statistics in its own way.
    with steps.fused(not training):
        expected, = plain(images)
        out, = model.train(training)(images)
    scale = expected.detach().abs().max()
    torch.testing.assert_close(
        out / scale, expected / scale, rtol=0, atol=1e-6)


@pytest.mark.parametrize('model, side', [
    (lambda: StepResNet(18, attention=dict(type='FCA')), 224),
    (lambda: StepResNet(
        18, attention=dict(type='FCA'), strides=(1, 2, 2, 1)), 224),
    (lambda: StepResNetCIFAR(20, attention=dict(type='FCA')), 32),
])
def test_backbones_know_their_map_sizes(model, side):
    model = model().eval()
    seen = []

    def compare(attention, inputs):
        seen.append(tuple(inputs[1].shape[2:]) == (attention.map_size, ) * 2)

    for module in model.modules():
        if isinstance(module, FCA):
            module.register_forward_pre_hook(compare)
    with torch.no_grad():
        model(torch.rand(1, 3, side, side))
    assert seen
    assert all(seen)
