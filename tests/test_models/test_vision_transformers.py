"""The vision transformers against formulas and MMPretrain's own."""

import copy
import math

import mmpretrain.models
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from mmengine.runner.checkpoint import load_state_dict as mmengine_load

from mmstepnet.models import (
    PropagationVisionTransformer,
    StepVisionTransformer,
)
from tests.utils import perturb, run, same, same_tensors, seeded

ARCH = dict(embed_dims=24, num_layers=3, num_heads=4, feedforward_channels=40)
SETTINGS = dict(arch=ARCH, img_size=32, patch_size=8)


def host(**kwargs):
    model = perturb(
        mmpretrain.models.VisionTransformer(**{**SETTINGS, **kwargs})
    )
    model.eval()  # returns nothing
    return model


def stepped(**kwargs):
    return StepVisionTransformer(**{**SETTINGS, **kwargs})


def propagating(similarity, eps=1.0, **kwargs):
    return PropagationVisionTransformer(
        propagation=dict(type=similarity, eps=eps), **{**SETTINGS, **kwargs}
    )


@pytest.mark.parametrize('training', [False, True])
def test_layer_is_the_formula(training):
    layer = perturb(stepped()).layers[1].train(training)
    w = {k: v.double() for k, v in layer.state_dict().items()}
    tokens = seeded(3, 17, 24, seed=1) + 1

    def linear(x, name):
        return F.linear(x, w[f'{name}.weight'], w[f'{name}.bias'])

    def norm(x, name):
        return F.layer_norm(
            x, (24,), w[f'{name}.weight'], w[f'{name}.bias'], 1e-6
        )

    x = tokens.double()
    f = linear(linear(norm(x, 'ln1'), 'attn.value'), 'attn.proj')
    gate = {k.removeprefix('step.attention.'): v for k, v in w.items()}
    z = gate['pair_weight'][:, 0] * x.mean(1) + gate['pair_weight'][:, 1] * (
        x + f
    ).mean(1)
    mean, var = gate['bn.running_mean'], gate['bn.running_var']
    if training:
        mean, var = z.mean(0), z.var(0, correction=0)
    z = (z - mean) / (var + 1e-5).sqrt() * gate['bn.weight'] + gate['bn.bias']
    step = torch.sigmoid(gate['ie_weight'] * z + gate['ie_bias'])
    x = x + f * step[:, None]
    hidden = F.gelu(linear(norm(x, 'ln2'), 'ffn.layers.0.0'))
    x = x + linear(hidden, 'ffn.layers.1')

    torch.testing.assert_close(
        layer(tokens).detach().double(), x, rtol=0, atol=2e-5
    )


@pytest.mark.parametrize(
    'kwargs',
    [
        pytest.param(dict(out_type='raw'), id='raw'),
        pytest.param(dict(out_type='featmap'), id='map'),
        pytest.param(
            dict(out_type='avg_featmap', with_cls_token=False),
            id='mean of the map',
        ),
        pytest.param(dict(qkv_bias=False), id='no bias'),
        pytest.param(dict(layer_scale_init_value=0.1), id='layer scale'),
        pytest.param(
            dict(layer_cfgs=dict(ffn_type='swiglu_fused')), id='SwiGLU'
        ),
    ],
)
def test_all_but_the_attention_is_the_hosts(kwargs):
    """Without a branch both are the host's transformer."""
    theirs, model = host(**kwargs), perturb(stepped(**kwargs), seed=5).eval()
    model.load_state_dict(theirs.state_dict(), strict=False)
    theirs.double(), model.double()
    with torch.no_grad():
        for network in (theirs, model):
            for layer in network.layers:
                layer.attn.proj.weight.zero_()
                layer.attn.proj.bias.zero_()
    for size in (32, 48):  # the host resizes what stands for places
        images = seeded(2, 3, size, size).double()
        same(model(images)[0], theirs(images)[0])


@pytest.mark.parametrize(
    'kwargs',
    [
        pytest.param(dict(), id='default'),
        pytest.param(dict(qkv_bias=False), id='no bias'),
        pytest.param(dict(arch={**ARCH, 'num_heads': 1}), id='one head'),
        pytest.param(
            dict(
                with_cls_token=False,
                out_type='avg_featmap',
                layer_scale_init_value=0.1,
            ),
            id='no class token',
        ),
    ],
)
def test_dot_product_is_the_host(kwargs):
    theirs = host(**kwargs).double()
    heads = kwargs.get('arch', ARCH)['num_heads']
    model = (
        propagating('DotProductAttention', math.sqrt(24 / heads), **kwargs)
        .double()
        .eval()
    )
    model.load_state_dict(theirs.state_dict())
    images = seeded(2, 3, 32, 32).double()
    out, grads, inputs = run(model, images)
    host_out, host_grads, host_inputs = run(theirs, images)
    same_tensors(out, host_out)
    same_tensors(inputs, host_inputs)
    # Loaded as weights, the host's gradients have our names.
    twin = copy.deepcopy(model).requires_grad_(False)
    twin.load_state_dict(
        {
            **theirs.state_dict(),
            **{k: g for k, g in host_grads.items() if g is not None},
        }
    )
    # The gradient of a key's bias is zero but for rounding.
    found = {
        k: g
        for k, g in grads.items()
        if g is not None and not k.endswith('key.bias')
    }
    same_tensors(found, {k: twin.get_parameter(k).data for k in found})


def test_a_frozen_layer_has_a_frozen_propagation():
    model = propagating('MetricAttention', frozen_stages=1)
    for place, layer in enumerate(model.layers):
        parameters = [*layer.attn.parameters()]
        assert parameters
        for p in parameters:
            assert p.requires_grad == (place > 0)


@pytest.mark.parametrize(
    'load',
    [
        pytest.param(nn.Module.load_state_dict, id='by PyTorch'),
        pytest.param(mmengine_load, id='by mmengine'),
    ],
)
@pytest.mark.parametrize(
    'build',
    [
        pytest.param(lambda: propagating('MetricAttention'), id='metric'),
        pytest.param(lambda: propagating('L2Attention'), id='L2'),
        pytest.param(stepped, id='steps'),
    ],
)
def test_what_a_host_has_saved_is_taken_over(build, load):
    theirs, model = host(), build()
    state = theirs.state_dict()
    load(model, state, strict=False)
    assert list(state) == list(theirs.state_dict())
    taken = model.state_dict()
    for layer, our in zip(theirs.layers, model.layers):
        attn = getattr(our.attn, 'propagation', our.attn)
        for kind in ('weight', 'bias'):
            value = getattr(layer.attn.qkv, kind)[2 * 24 :]
            assert torch.equal(getattr(attn.value, kind), value)
            assert torch.equal(
                getattr(attn.proj, kind), getattr(layer.attn.proj, kind)
            )
    for name, value in state.items():
        assert '.attn.' in name or torch.equal(taken[name], value)
    # Its own are read as they were written.
    again = build()
    again.load_state_dict(taken)
    torch.testing.assert_close(again.state_dict(), taken, rtol=0, atol=0)
