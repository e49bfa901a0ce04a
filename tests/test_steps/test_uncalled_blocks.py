"""Blocks that no pass calls, and networks without any."""

import copy

import pytest
import torch
import torch.nn as nn

from mmstepnet import insert_steps

from .described_blocks import Conv
from .insertion import steps_of


class Parts(nn.Module):
    """Uses a block's parts and never the block, as MMAction2's TABlock."""

    def __init__(self):
        super().__init__()
        self.block = Conv(8)

    def forward(self, x):
        return x + self.block.norm(self.block.conv(x))


class Frames(nn.Sequential):
    """Of eight frames a sample, as networks of videos."""

    def forward(self, x):
        return super().forward(x.view(-1, 8, *x.shape[1:]).flatten(0, 1))


@pytest.mark.parametrize('cls', [nn.Sequential, Frames])
def test_blocks_that_are_never_called(cls, caplog):
    """Their gates would stay dead."""
    x = torch.zeros(8, 8, 6, 6)
    model = cls(Conv(8), Parts(), Conv(8))
    model.init_cfg, model.img_size = None, 6  # as a module of MMEngine
    twin = copy.deepcopy(model)
    assert insert_steps(model) == ['0', '2']
    assert '1.block: no pass calls' in caplog.text
    model(x).sum().backward()
    for step in steps_of(model).values():
        assert all(p.grad is not None for p in step.attention.parameters())
    for options in (dict(), dict(example=x)):
        with pytest.raises(ValueError, match='1.block: no pass calls the f'):
            insert_steps(twin, blocks=['1.block'], **options)
    assert not steps_of(twin)
    alone = nn.Sequential(Parts())
    alone.init_cfg, alone.img_size = None, 6
    with pytest.raises(ValueError, match='no pass calls the forward of'):
        insert_steps(alone)


class NotResidual(nn.Module):
    """Adds nothing to its state that it was given."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (nn.Conv2d(8, 8, 1) for _ in range(2))

    def forward(self, x):
        return self.first(x) + self.second(x)


@pytest.mark.parametrize('options', [
    dict(), dict(example=torch.rand(1, 8, 6, 6)),
    dict(example=torch.rand(1, 8, 6, 6), blocks='4')])
def test_what_is_said_where_no_block_is_found(options):
    """The model's own blocks, what was seen in them and the way out."""
    model = nn.Sequential(*(NotResidual() for _ in range(30)))
    with pytest.raises(ValueError) as raised:
        insert_steps(model, **options)
    message = str(raised.value)
    assert len(message) <= 900
    assert 'NotResidual: 30, such as 0' in message
    assert ('register_block' if options else 'example=') in message
    assert not options or 'no residual step of Sequential' in message
