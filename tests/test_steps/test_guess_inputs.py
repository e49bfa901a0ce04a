"""Networks of videos and sequences get steps without an example."""

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from torchvision.models.video import r3d_18

from mmstepnet import insert_steps
from tests.utils import Adds, same


class Network(nn.Module):
    """A stem, two blocks, and what stands between and behind."""

    def __init__(self, stem, layer, before=lambda x: x, after=lambda x, _: x):
        super().__init__()
        self.stem, self.before, self.after = stem, before, after
        self.blocks = nn.Sequential(*(Adds(layer(8, 8, 1)) for _ in range(2)))
        self.init_weights = None  # as a backbone of MMEngine has

    def forward(self, x):
        return self.after(self.blocks(self.before(self.stem(x))), x)


def clips():
    """A stem of three dimensions takes frames behind its channels."""
    model = r3d_18()
    model.layer2 = model.layer3 = model.layer4 = model.fc = nn.Identity()
    return model


def shifted():
    """Mixes the frames of a clip, which are samples, as TSM does."""
    model = Network(
        nn.Conv2d(3, 8, 1),
        nn.Conv2d,
        lambda x: x.view(-1, 4, *x.shape[1:]).roll(1, 1).flatten(0, 1),
    )
    model.num_segments = 4
    return model


def halved():
    """Joins maps of different strides, as YOLOv7's largest networks do."""
    return Network(
        nn.Conv2d(3, 8, 64, stride=64),
        nn.Conv2d,
        after=lambda y, x: y + F.avg_pool2d(x[:, :1], 64, ceil_mode=True),
    )


@pytest.mark.parametrize(
    'build, size, names',
    [
        pytest.param(
            clips, (2, 3, 6, 32, 32), ['layer1.0', 'layer1.1'], id='clips'
        ),
        pytest.param(
            lambda: Network(nn.Conv1d(6, 8, 3), nn.Conv1d),
            (2, 6, 30),
            None,
            id='sequences',
        ),
        pytest.param(shifted, (8, 3, 6, 6), None, id='shifted'),
        pytest.param(halved, (2, 3, 128, 128), None, id='halved'),
    ],
)
def test_guessed(build, size, names):
    model, x = build().double().eval(), torch.rand(size).double()
    with torch.no_grad():
        expected = model(x)
        assert insert_steps(model) == (names or ['blocks.0', 'blocks.1'])
        same(model(x), expected)


@pytest.mark.parametrize('name', ['VideoMAE', 'Timesformer', 'Vivit'])
def test_frames_before_channels(name):
    """As transformers' models take them."""
    transformers = pytest.importorskip('transformers')
    config = getattr(transformers, f'{name}Config')(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        image_size=32,
        num_frames=4,
    )
    model = getattr(transformers, f'{name}Model')(config).eval()
    assert len(insert_steps(model)) == 2
