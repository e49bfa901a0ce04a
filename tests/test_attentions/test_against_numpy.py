"""Each attention against its formula, evaluated in NumPy and SciPy."""

import numpy as np
import pytest
import torch
from scipy.fft import dctn
from scipy.signal import correlate2d
from scipy.special import expit as sigmoid

from mmstepnet.attentions import build_attention, choose_step
from tests.utils import perturb

# As the paper's search ranked them: vertical and horizontal frequency.
FCA_ROWS = [0, 0, 6, 0, 0, 1, 1, 4, 5, 1, 3, 0, 0, 0, 3, 2]
FCA_COLUMNS = [0, 1, 0, 5, 2, 0, 2, 0, 0, 6, 0, 4, 6, 3, 5, 2]


def mlp(w, z, prefix=''):
    hidden = z @ w[prefix + 'fc1.weight'].T + w[prefix + 'fc1.bias']
    return (
        np.maximum(hidden, 0) @ w[prefix + 'fc2.weight'].T
        + w[prefix + 'fc2.bias']
    )


def bn(w, z, training, name='bn'):
    axes = (0, *range(2, z.ndim))
    mean, var, gamma, beta = (
        w.get(f'{name}.{key}', default)
        for key, default in (
            ('running_mean', 0),
            ('running_var', 0),
            ('weight', 1),
            ('bias', 0),
        )
    )
    if training:
        mean, var = z.mean(axes), z.var(axes)
    mean, var, gamma, beta = (
        np.reshape(v, (-1, *[1] * (z.ndim - 2)))
        for v in (mean, var, gamma, beta)
    )
    return (z - mean) / np.sqrt(var + 1e-5) * gamma + beta


def eca_logits(kernel, z):
    kernel = kernel.ravel()
    padded = np.pad(z, ((0, 0), (len(kernel) // 2,) * 2))
    return np.stack(
        [padded[:, c : c + len(kernel)] @ kernel for c in range(z.shape[1])], 1
    )


def se(w, x, f, training):
    return sigmoid(mlp(w, f.mean((2, 3))))


def eca(w, x, f, training):
    return sigmoid(eca_logits(w['conv.weight'], f.mean((2, 3))))


def sem(w, x, f, training):
    g = f.mean((2, 3))
    switch = sigmoid(g @ w['switch.weight'].T + w['switch.bias'])
    return (
        sigmoid(switch[:, :1] * mlp(w, g, 'se.'))
        * sigmoid(switch[:, 1:2] * eca_logits(w['eca.conv.weight'], g))
        * sigmoid(switch[:, 2:] * (w['ie_weight'] * g + w['ie_bias']))
    )


def srm(w, x, f, training):
    z = w['style_weight'][:, 0] * f.mean((2, 3)) + w['style_weight'][
        :, 1
    ] * np.sqrt(f.var((2, 3)) + 1e-5)
    return sigmoid(bn(w, z, training))


def fca(w, x, f, training):
    C, size = f.shape[1:3]
    spectrum = dctn(f, axes=(2, 3), norm='ortho')
    z = np.stack(
        [
            spectrum[
                :,
                c,
                FCA_ROWS[16 * c // C] * (size // 7),
                FCA_COLUMNS[16 * c // C] * (size // 7),
            ]
            for c in range(C)
        ],
        1,
    )
    return sigmoid(mlp(w, z))


def sge(w, x, f, training):
    N, C, H, W = f.shape
    step = np.empty_like(f)
    G = len(w['weight'])
    for n in range(N):
        for g in range(G):
            group = slice(g * C // G, (g + 1) * C // G)
            vectors = f[n, group].reshape(C // G, -1)
            c = vectors.mean(1) @ vectors
            c = (c - c.mean()) / (c.std() + 1e-5)
            step[n, group] = sigmoid(
                w['weight'][g] * c + w['bias'][g]
            ).reshape(H, W)
    return step


def cbam(w, x, f, training):
    channel = sigmoid(
        mlp(w, f.mean((2, 3)), 'mlp.') + mlp(w, f.max((2, 3)), 'mlp.')
    )
    f = f * channel[..., None, None]
    kernel = w['conv.weight'][0]
    z = np.stack(
        [
            correlate2d(image.mean(0), kernel[0], 'same')
            + correlate2d(image.max(0), kernel[1], 'same')
            for image in f
        ]
    )[:, None]
    return channel[..., None, None] * sigmoid(bn(w, z, training))


def adaptor(mix):

    def step(w, x, f, training):
        z = mix(w, x, x + f)
        if 'bn.weight' in w:
            z = bn(w, z, training)
        return sigmoid(w['ie_weight'] * z + w['ie_bias'])

    return step


def both(w, x, x_next):
    return w['pair_weight'][:, 0] * x.mean((2, 3)) + w['pair_weight'][
        :, 1
    ] * x_next.mean((2, 3))


def cited(w, x, f, training):
    """A sigmoid over IEBN, on maps of one place."""
    z = both(w, x, x + f)
    gate = sigmoid(w['ie_weight'] * z + w['ie_bias'])
    return sigmoid(w['weight'] * gate * bn(w, z, training) + w['bias'])


def norm_first(w, x, f, training):
    pair = np.concatenate([x.mean((2, 3)), (x + f).mean((2, 3))], 1)
    p, q = np.split(bn(w, pair, training, 'pair_bn'), 2, 1)
    z = w['pair_weight'][:, 0] * p + w['pair_weight'][:, 1] * q
    return sigmoid(w['ie_weight'] * z + w['ie_bias'])


def constant(w, x, f, training):
    return np.broadcast_to(w['weight'], x.shape[:2])


def depthwise(w, x, x_next):
    z = np.empty(x.shape[:2])
    for n, c in np.ndindex(z.shape):
        kernel = w['conv.weight'][c]
        z[n, c] = np.maximum(
            correlate2d(x[n, c], kernel[0], 'same')
            + correlate2d(x_next[n, c], kernel[1], 'same'),
            0,
        ).mean()
    return z


def mean_std(w, x, x_next):
    statistics = [
        s
        for state in (x, x_next)
        for s in (state.mean((2, 3)), np.sqrt(state.var((2, 3)) + 1e-5))
    ]
    return sum(w['style_weight'][:, k] * s for k, s in enumerate(statistics))


@pytest.mark.parametrize('training', [False, True])
@pytest.mark.parametrize(
    'dtype, layout, atol',
    [
        (torch.float32, torch.channels_last, 1e-5),
        (torch.float64, torch.contiguous_format, 1e-12),
    ],
)
@pytest.mark.parametrize(
    'cfg, reference',
    [
        (dict(type='SE', reduction=4), se),
        (dict(type='ECA'), eca),
        (dict(type='SEM', reduction=4), sem),
        (dict(type='SRM'), srm),
        (dict(type='FCA', map_size=9, reduction=4), fca),
        (dict(type='FCA', map_size=14, reduction=4), fca),
        (dict(type='SGE', groups=8), sge),
        (dict(type='CBAM', reduction=4), cbam),
        (dict(type='LayerScale'), constant),
        (dict(type='LayerScale', shared=True, learned=False), constant),
        (dict(type='StepNet'), adaptor(both)),
        (dict(type='StepNet', iebn='cited'), cited),
        (
            dict(type='StepNet', inputs='x'),
            adaptor(lambda w, x, y: w['pair_weight'][:, 0] * x.mean((2, 3))),
        ),
        (
            dict(type='StepNet', inputs='x_next'),
            adaptor(lambda w, x, y: w['pair_weight'][:, 0] * y.mean((2, 3))),
        ),
        (
            dict(type='StepNet', inputs='difference'),
            adaptor(
                lambda w, x, y: w['pair_weight'][:, 0] * (y - x).mean((2, 3))
            ),
        ),
        (
            dict(type='OursSharedMLP', reduction=4),
            adaptor(
                lambda w, x, y: mlp(
                    w, np.concatenate([x.mean((2, 3)), y.mean((2, 3))], 1)
                )
            ),
        ),
        (dict(type='OursDepthwiseConv'), adaptor(depthwise)),
        (dict(type='OursNoNorm'), adaptor(both)),
        (dict(type='OursNormFirst'), norm_first),
        (dict(type='OursMeanStd'), adaptor(mean_std)),
    ],
    ids=lambda value: (
        '-'.join(map(str, value.values())) if isinstance(value, dict) else ''
    ),
)
def test_step_is_the_formula(
    cfg, reference, dtype, layout, atol, training, maps
):
    C = 48
    attention = perturb(build_attention(cfg, C)).train(training).to(dtype)
    size = cfg.get('map_size')
    x, f = (
        m.contiguous(memory_format=layout)
        for m in maps(3, C, *((size, size) if size else (6, 9)), dtype=dtype)
    )
    weights = {
        name: value.double().numpy()
        for name, value in attention.state_dict().items()
    }
    expected = reference(
        weights, x.double().numpy(), f.double().numpy(), training
    )

    step = choose_step(attention, x, f).detach()

    step = step.expand(3, C, *step.shape[2:]).double().numpy()
    if expected.ndim == 2:
        expected = expected[..., None, None]
    assert step.shape == expected.shape
    np.testing.assert_allclose(step, expected, rtol=0, atol=atol)
    # A test of constants would show nothing.
    assert reference is constant or expected.std(0).max() > 1e-3


@pytest.mark.parametrize(
    'channels, size',
    [
        (4, 1),
        (8, 3),
        (10, 3),
        (64, 3),
        (128, 5),
        (256, 5),
        (512, 5),
        (2048, 7),
    ],
)
def test_eca_kernel_size(channels, size):
    # Worked out by hand from Eq. 12: |log2 C + 1| / 2, cut, made odd.
    attention = build_attention(dict(type='ECA'), channels)
    assert attention.conv.kernel_size == (size,)


def test_fca_pools_other_sizes_to_its_own(maps):
    attention = perturb(
        build_attention(dict(type='FCA', map_size=8, reduction=2), 16)
    )
    x, f = maps(2, 16, 16, 24)
    pooled = f.unflatten(2, (8, 2)).unflatten(4, (8, 3)).mean((3, 5))
    step = attention(x, f)
    torch.testing.assert_close(step, attention(x, pooled))
    assert not step.allclose(attention(x, f.flip(3)), atol=1e-3)
