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


def images(n=2, size=32):
    return seeded(n, 3, size, size)


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


def test_all_but_the_attention_is_the_hosts():
    """Without a branch both are the host's transformer."""
    host = mmpretrain.models.VisionTransformer(
        ARCH, img_size=32, patch_size=8, out_type='raw')
    model = build(out_type='raw')
    perturb(host).eval()
    perturb(model, seed=5).eval()
    keys = model.load_state_dict(host.state_dict(), strict=False)
    assert all('.attn.qkv.' in key for key in keys.unexpected_keys)
    assert all('.attn.value.' in key or '.step.attention.' in key
               for key in keys.missing_keys)
    with torch.no_grad():
        for network in (host, model):
            for layer in network.layers:
                layer.attn.proj.weight.zero_()
                layer.attn.proj.bias.zero_()
    torch.testing.assert_close(model(images())[0], host(images())[0])


def test_tokens_meet_in_the_step_only():
    """With a step of 1 a patch changes its own token alone."""

    def changed_tokens(model):
        model = perturb(model).eval()
        other = images()
        other[:, :, :8, :8] += 1
        difference = model(images())[0] - model(other)[0]
        return (difference.abs().amax((0, 2)) > 1e-6).tolist()

    alone = changed_tokens(build(out_type='raw', attention=None))
    assert alone == [False, True] + [False] * 15
    assert all(changed_tokens(build(out_type='raw')))


def test_frozen_layers_keep_their_statistics():
    model = build(frozen_stages=2)
    assert model.train() is model
    model(images())
    tracked = [
        int(m.bn.num_batches_tracked) for m in model.modules()
        if isinstance(m, StepNet)
    ]
    assert tracked == [0, 0, 1]
    trained = {
        name.split('.')[1]
        for name, p in model.named_parameters()
        if p.requires_grad and name.startswith('layers')
    }
    assert trained == {'2'}


@pytest.mark.parametrize('kwargs', [
    dict(out_type='avg_featmap', with_cls_token=False),
    dict(out_type='featmap'),
    dict(qkv_bias=False),
    dict(layer_scale_init_value=0.1),
    dict(layer_cfgs=dict(ffn_type='swiglu_fused')),
    dict(attention=dict(type='SE')),
    dict(attention=dict(type='StepNet', inputs='x', init_step=1.0)),
])
def test_options_of_the_host(kwargs):
    model = perturb(build(**kwargs)).eval()
    # Dynamic input sizes are the host's.
    for size in (32, 48):
        assert all(o.isfinite().all() for o in model(images(size=size)))
