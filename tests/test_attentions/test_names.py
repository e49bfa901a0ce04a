"""Names by which configs choose an attention."""

import pytest
import torch
from mmengine.registry import DefaultScope

from mmstepnet.attentions import (
    ATTENTIONS,
    ChannelGate,
    Plain,
    build_attention,
)
from mmstepnet.models import StepResNetCIFAR

from .conftest import ATTENTIONS as TRIED


def test_every_attention_is_tried():
    assert {cfg['type'] for cfg in TRIED.values()} == set(
        ATTENTIONS) - {'Plain'}


class Half(ChannelGate):
    pooled = ('f_mean', )

    def forward(self, f_mean):
        return torch.full_like(f_mean, 0.5)


@pytest.fixture
def registered(monkeypatch):
    """A class of a user's own."""
    monkeypatch.setitem(ATTENTIONS, 'Half', Half)


@pytest.mark.parametrize('scope', ['mmdet', 'mmpretrain', 'mmstepnet'])
@pytest.mark.parametrize('name', ['Half', 'mmstepnet.Half', Half])
def test_found_in_any_scope(registered, name, scope):
    with DefaultScope.overwrite_default_scope(scope):
        assert type(build_attention(dict(type=name), 4)) is Half
        model = StepResNetCIFAR(20, attention=dict(type=name))
    assert type(model.layer1[1].step.attention) is Half


def test_a_name_is_given_once(registered):
    assert ATTENTIONS.register(Half) is Half
    with pytest.raises(KeyError, match='Half.* already'):
        ATTENTIONS.register(type('Half', (ChannelGate, ), {}))
    assert 'IEBN' not in ATTENTIONS  # a norm layer


def test_plain_is_the_short_forms_long_form():
    """A config that inherits another attention's keeps its init_step."""
    long = StepResNetCIFAR(20, attention=dict(type='Plain', init_step=1.0))
    short = StepResNetCIFAR(20, attention=None)
    assert isinstance(long.layer1[0].step.attention, Plain)
    long.load_state_dict(short.state_dict())
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(long(images)[0], short(images)[0])
    with pytest.raises(ValueError, match='init_step must be 1.*got 0.5'):
        build_attention(dict(type='Plain', init_step=0.5), 4)
