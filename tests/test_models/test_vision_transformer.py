import mmpretrain.models
import numpy as np
import pytest
import torch
from scipy.special import erf

from mmstepnet.attentions import StepNet
from mmstepnet.models import StepVisionTransformer
from tests.utils import perturb, seeded

ARCH = dict(
    embed_dims=24, num_layers=3, num_heads=4, feedforward_channels=40)


def build(**kwargs):
    return StepVisionTransformer(
        **{**dict(arch=ARCH, img_size=32, patch_size=8), **kwargs})


def layer_norm(x, weight, bias):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt(x.var(-1, keepdims=True) + 1e-6) * weight + bias


def gelu(x):
    return x * (1 + erf(x / np.sqrt(2))) / 2


@pytest.mark.parametrize('training', [False, True])
def test_layer_is_the_formula(training):
    layer = perturb(build()).layers[1].train(training)
    w = {k: v.double().numpy() for k, v in layer.state_dict().items()}
    tokens = seeded(3, 17, 24, seed=1) + 1

    x = tokens.double().numpy()
    normed = layer_norm(x, w['ln1.weight'], w['ln1.bias'])
    value = normed @ w['attn.value.weight'].T + w['attn.value.bias']
    f = value @ w['attn.proj.weight'].T + w['attn.proj.bias']
    a = 'step.attention.'
    z = (w[a + 'pair_weight'][:, 0] * x.mean(1) +
         w[a + 'pair_weight'][:, 1] * (x + f).mean(1))
    mean, var = w[a + 'bn.running_mean'], w[a + 'bn.running_var']
    if training:
        mean, var = z.mean(0), z.var(0)
    z = (z - mean) / np.sqrt(var + 1e-5) * w[a + 'bn.weight'] + w[a +
                                                                  'bn.bias']
    step = 1 / (1 + np.exp(-(w[a + 'ie_weight'] * z + w[a + 'ie_bias'])))
    x = x + f * step[:, None]
    hidden = gelu(
        layer_norm(x, w['ln2.weight'], w['ln2.bias'])
        @ w['ffn.layers.0.0.weight'].T + w['ffn.layers.0.0.bias'])
    x = x + hidden @ w['ffn.layers.1.weight'].T + w['ffn.layers.1.bias']

    np.testing.assert_allclose(
        layer(tokens).detach().numpy(), x, rtol=0, atol=2e-5)


@pytest.mark.parametrize('kwargs', [
    dict(out_type='raw'), dict(out_type='featmap'),
    dict(out_type='avg_featmap', with_cls_token=False), dict(qkv_bias=False),
    dict(layer_scale_init_value=0.1),
    dict(layer_cfgs=dict(ffn_type='swiglu_fused'))])
def test_all_but_the_attention_is_the_hosts(kwargs):
    """Without a branch both are the host's transformer."""
    host = perturb(mmpretrain.models.VisionTransformer(
        ARCH, img_size=32, patch_size=8, **kwargs))
    host.eval()
    model = perturb(build(**kwargs), seed=5).eval()
    keys = model.load_state_dict(host.state_dict(), strict=False)
    assert all('.attn.qkv.' in key for key in keys.unexpected_keys)
    assert all('.attn.value.' in key or '.step.attention.' in key
               for key in keys.missing_keys)
    with torch.no_grad():
        for network in (host, model):
            for layer in network.layers:
                layer.attn.proj.weight.zero_()
                layer.attn.proj.bias.zero_()
    for size in (32, 48):  # the host resizes what stands for places
        images = seeded(2, 3, size, size)
        torch.testing.assert_close(model(images)[0], host(images)[0])


def test_frozen_layers_keep_their_statistics():
    model = build(frozen_stages=2)
    assert model.train() is model
    model(seeded(2, 3, 32, 32))
    gates = [m for m in model.modules() if isinstance(m, StepNet)]
    assert [int(m.bn.num_batches_tracked) for m in gates] == [0, 0, 1]
    assert [m.ie_bias.requires_grad for m in gates] == [False, False, True]
