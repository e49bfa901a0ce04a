"""Networks of videos and sequences get steps without an example."""

import pytest
import torch
import torch.nn as nn
from torchvision.models.video import r3d_18

from mmstepnet import insert_steps
from tests.utils import Adds


def check(model, clips, names):
    model.eval()
    with torch.no_grad():
        expected = model(clips)
        assert insert_steps(model) == names
        torch.testing.assert_close(model(clips), expected)


def test_clips():
    """A stem of three dimensions takes frames behind its channels."""
    model = r3d_18()
    model.layer3 = model.layer4 = nn.Identity()
    model.fc = nn.Identity()
    check(model, torch.rand(2, 3, 6, 32, 32),
          ['layer1.0', 'layer1.1', 'layer2.1'])


class Shifted(nn.Module):
    """Mixes the frames of a clip, as TSM does."""

    init_cfg = None  # as a backbone of MMEngine has
    num_segments = 4

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 1)
        self.blocks = nn.Sequential(
            *(Adds(nn.Conv2d(8, 8, 1)) for _ in range(2)))

    def forward(self, frames):
        x = self.stem(frames)
        clips = x.view(-1, self.num_segments, *x.shape[1:])
        return self.blocks(clips.roll(1, 1).flatten(0, 1))


class Sequences(nn.Module):
    """Begins with a convolution of one dimension."""

    init_cfg = None

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv1d(6, 8, 3)
        self.blocks = nn.Sequential(
            *(Adds(nn.Conv1d(8, 8, 1)) for _ in range(2)))

    def forward(self, x):
        return self.blocks(self.stem(x))


def test_sequences():
    """As those of joints that a temporal convolution lifts."""
    check(Sequences(), torch.rand(2, 6, 30), ['blocks.0', 'blocks.1'])


def test_frames_of_a_clip_are_samples():
    check(Shifted(), torch.rand(8, 3, 6, 6), ['blocks.0', 'blocks.1'])


class Halved(nn.Module):
    """Joins maps of different strides, as YOLOv7's largest networks do."""

    init_weights = None  # as MMAction2's oldest backbones have

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 64, stride=64)
        self.blocks = nn.Sequential(
            *(Adds(nn.Conv2d(8, 8, 1)) for _ in range(2)))

    def forward(self, x):
        fine = self.blocks(self.stem(x))
        return fine + nn.functional.avg_pool2d(x[:, :1], 64, ceil_mode=True)


def test_large_strides():
    check(Halved(), torch.rand(2, 3, 128, 128),
          ['blocks.0', 'blocks.1'])


@pytest.mark.parametrize('name', ['VideoMAE', 'Timesformer', 'Vivit'])
def test_frames_before_channels(name):
    """As transformers' models take them."""
    transformers = pytest.importorskip('transformers')
    config = getattr(transformers, f'{name}Config')(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, image_size=32, num_frames=4)
    model = getattr(transformers, f'{name}Model')(config).eval()
    assert len(insert_steps(model)) == 2
