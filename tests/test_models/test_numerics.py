"""Half precision: nothing overflows, and training goes as in float32."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn as nn
from PIL import Image

from mmstepnet import steps
from mmstepnet.attentions import ATTENTIONS, build_attention
from mmstepnet.models import StepResNetCIFAR
from mmstepnet.steps import ResidualStep
from tests.utils import not_on_torch_21

CIFAR = Path(__file__).parents[2] / 'data/cifar10/train'
CHANNELS = 64
TOLERANCES = {torch.float16: 5e-3, torch.bfloat16: 3e-2}


def attention(name):
    torch.manual_seed(0)
    module = build_attention(dict(type=name), CHANNELS, map_size=8)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.1)
    return module


@pytest.mark.parametrize('scale', [1e-4, 2e3])
@pytest.mark.parametrize('dtype', [
    pytest.param(
        torch.float16,
        marks=not_on_torch_21('has no float16 autocast on CPU')),
    torch.bfloat16,
])
@pytest.mark.parametrize('name, fused', [
    *((name, False) for name in sorted(set(ATTENTIONS) - {'Plain'})),
    ('StepNet', True)])
def test_large_and_tiny_activations(name, dtype, scale, fused):
    """The sum over a map of 2e3 is 65 times what float16 reaches."""
    torch.manual_seed(1)
    x, f = ((torch.rand(4, CHANNELS, 48, 48) + 0.5) * scale for _ in 'xf')
    x, f = x.to(dtype), f.to(dtype)
    step = ResidualStep(attention(name), nn.ReLU())
    exact = ResidualStep(attention(name), nn.ReLU()).double()
    with steps.fused(fused), torch.autocast('cpu', dtype=dtype):
        out = step(x, f, None)
        grad = torch.autograd.grad(out.float().mean(), step.parameters(),
                                   allow_unused=True)
    with steps.fused(False):
        expected = exact(x.double(), f.double(), None)
    assert out.isfinite().all()
    assert all(g is None or g.isfinite().all() for g in grad)
    error = (out.double() - expected).norm() / expected.norm()
    assert error < TOLERANCES[dtype]


@pytest.mark.skipif(not CIFAR.is_dir(), reason='needs data/cifar10, see '
                    'configs/cifar10/README.md')
def test_bfloat16_follows_float32():
    """300 iterations of ResNet-20 StepNet on real images."""
    batch, iterations, window = 32, 300, 50
    files = sorted(CIFAR.glob('*/*.jpg'))
    classes = sorted({file.parent.name for file in files})
    order = np.random.default_rng(0).permutation(len(files))
    chosen = [files[i] for i in order[:batch * iterations]]
    images = np.stack([np.asarray(Image.open(file)) for file in chosen])
    images = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 128 - 1
    labels = torch.tensor([classes.index(f.parent.name) for f in chosen])
    curves = []
    for enabled in (False, True):
        torch.manual_seed(0)
        body = StepResNetCIFAR(20, attention=dict(type='StepNet'))
        body.init_weights()
        body.train()
        fc = nn.Linear(64, 10)
        optimizer = torch.optim.SGD(
            [*body.parameters(), *fc.parameters()], lr=0.02, momentum=0.9)
        curve = []
        for x, y in zip(images.split(batch), labels.split(batch)):
            with torch.autocast('cpu', torch.bfloat16, enabled=enabled):
                logits = fc(body(x)[-1].mean((2, 3)))
                loss = nn.functional.cross_entropy(logits, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            curve.append(loss.item())
        curves.append(np.reshape(curve, (-1, window)).mean(1))
    full, half = curves
    print('means of', window, 'iterations', full.round(3), half.round(3))
    assert full[-1] < full[0] - 0.2  # it learns
    np.testing.assert_allclose(half, full, atol=0.06)
