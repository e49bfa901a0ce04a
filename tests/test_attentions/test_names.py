"""Names by which configs choose an attention."""

import pytest
import torch
from mmengine.registry import DefaultScope

from mmstepnet.attentions import (
    ATTENTIONS,
    ChannelGate,
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
