import math

import mmpretrain.models
import pytest
import torch
import torch.nn as nn
from mmengine.runner.checkpoint import load_state_dict as mmengine_load

from mmstepnet.models import (
    PropagationVisionTransformer,
    StepVisionTransformer,
)
from tests.utils import perturb, run, same_tensors, seeded

ARCH = dict(
    embed_dims=24, num_layers=2, num_heads=4, feedforward_channels=40)
SETTINGS = dict(arch=ARCH, img_size=32, patch_size=8, drop_path_rate=0.)
SPLIT = ('query', 'key', 'value')


def build(similarity, eps=1.0, **kwargs):
    return PropagationVisionTransformer(
        propagation=dict(type=similarity, eps=eps),
        **{**SETTINGS, **kwargs})


def from_host(state):
    """The host's weights under our names."""
    ours = {}
    for key, value in state.items():
        layer, found, rest = key.partition('.attn.')
        if not found or rest.startswith('gamma1'):
            ours[key] = value
        elif rest.startswith('qkv.'):
            name = rest.removeprefix('qkv.')
            for part, third in zip(SPLIT, value.chunk(3)):
                part = part if part == 'value' else f'pseudo_metric.{part}'
                ours[f'{layer}.attn.propagation.{part}.{name}'] = third
        else:
            ours[f'{layer}.attn.propagation.{rest}'] = value
    return ours


@pytest.mark.parametrize('kwargs', [
    dict(), dict(qkv_bias=False), dict(arch={**ARCH, 'num_heads': 1}),
    dict(with_cls_token=False, out_type='avg_featmap',
         layer_scale_init_value=0.1)])
def test_dot_product_is_the_host(kwargs):
    host = perturb(mmpretrain.models.VisionTransformer(
        **{**SETTINGS, **kwargs}))
    host.eval()
    heads = kwargs.get('arch', ARCH)['num_heads']
    model = build('DotProductAttention', math.sqrt(24 / heads),
                  **kwargs).eval()
    model.load_state_dict(host.state_dict())
    out, grads, inputs = run(model, seeded(2, 3, 32, 32))
    host_out, host_grads, host_inputs = run(host, seeded(2, 3, 32, 32))
    same_tensors(out, host_out)
    same_tensors(inputs, host_inputs)
    # The gradient of a key's bias is zero but for rounding.
    host_grads = from_host({k: g for k, g in host_grads.items()
                            if g is not None})
    grads = {k: g for k, g in grads.items() if g is not None}
    for key in [k for k in grads if k.endswith('key.bias')]:
        grads.pop(key), host_grads.pop(key)
    same_tensors(grads, host_grads)


@pytest.mark.parametrize('load', [nn.Module.load_state_dict, mmengine_load])
@pytest.mark.parametrize('build_model', [
    lambda: build('MetricAttention'), lambda: build('L2Attention'),
    lambda: StepVisionTransformer(**SETTINGS)])
def test_what_a_host_has_saved_is_taken_over(build_model, load):
    host = perturb(mmpretrain.models.VisionTransformer(**SETTINGS))
    model, state = build_model(), host.state_dict()
    load(model, state, strict=False)
    assert list(state) == list(host.state_dict())
    taken = model.state_dict()
    for k, layer in enumerate(host.layers):
        attn = model.layers[k].attn
        attn = getattr(attn, 'propagation', attn)
        for kind in ('weight', 'bias'):
            value = getattr(layer.attn.qkv, kind)[2 * 24:]
            assert torch.equal(getattr(attn.value, kind), value)
            assert torch.equal(getattr(attn.proj, kind),
                               getattr(layer.attn.proj, kind))
    for name, value in state.items():
        assert '.attn.' in name or torch.equal(taken[name], value)
    # Its own are read as they were written.
    again = build_model()
    again.load_state_dict(taken)
    assert all(torch.equal(value, taken[name])
               for name, value in again.state_dict().items())
