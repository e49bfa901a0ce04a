"""Blocks left out and finer networks, against loops over the blocks."""

import pytest
import torch
from mmengine.registry import MODELS

from projects.reproduction import single_blocks
from tests.utils import perturb, seeded


@pytest.fixture(scope='module')
def network():
    model = MODELS.build(dict(
        type='mmpretrain.ImageClassifier',
        backbone=dict(type='mmstepnet.StepResNetCIFAR', depth=20,
                      base_channels=4, attention=dict(type='SE')),
        neck=dict(type='mmpretrain.GlobalAveragePooling'),
        head=dict(type='mmpretrain.LinearClsHead', num_classes=3,
                  in_channels=16)))
    images = seeded(6, 3, 16, 16)
    return perturb(model).eval(), images


def states(model, images, steps, left_out=()):
    """By hand: x + f Δt / n, n times, then the activation."""
    backbone, found = model.backbone, {}
    x = backbone.relu(backbone.norm1(backbone.conv1(images)))
    for name in ('layer1', 'layer2', 'layer3'):
        for i, block in enumerate(getattr(backbone, name)):
            place = f'backbone.{name}.{i}'
            if place in left_out:
                continue
            count = steps if i else 1
            skip = x if block.downsample is None else block.downsample(x)
            for _ in range(count):
                f = block.norm2(block.conv2(block.relu(
                    block.norm1(block.conv1(x)))))
                x = skip = skip + f * block.step.attention(
                    f.mean((2, 3)))[..., None, None] / count
            x = found[place] = torch.relu(x)
    return x, found


@torch.no_grad()
def test_against_loops(network, monkeypatch):
    model, images = network
    monkeypatch.setattr(single_blocks, 'FINER', 3)
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    found = single_blocks.examine(model, images, labels)
    assert len(found['blocks']) == 6

    def right(x):
        scores = model.head.fc(x.mean((2, 3)))
        return 100 * (scores.argmax(1) == labels).float().mean().item()

    end, coarse = states(model, images, 1)
    torch.testing.assert_close(model.backbone(images)[-1], end)
    assert found['accuracy'] == pytest.approx(right(end))
    end, fine = states(model, images, 3)
    assert found['finer'] == pytest.approx(right(end))
    for i, name in enumerate(found['blocks']):
        without, _ = states(model, images, 1, [name])
        assert found['fall'][i] == pytest.approx(
            found['accuracy'] - right(without))
        a, b = coarse[name].flatten(1), fine[name].flatten(1)
        assert found['deviation'][i] == pytest.approx(
            ((a - b).norm(dim=1) / b.norm(dim=1)).mean().item(), rel=1e-4)
