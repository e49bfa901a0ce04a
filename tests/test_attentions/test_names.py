"""Names by which configs choose an attention, here and in mmengine."""

import pytest
import torch
from mmengine.registry import DefaultScope

from mmstepnet import registry
from mmstepnet.attentions import (
    ATTENTIONS,
    SE,
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


@pytest.fixture(params=[
    ATTENTIONS.register, registry.ATTENTIONS.register_module()
], ids=['the core', 'mmengine'])
def registered(request):
    """A class of a user's own, entered in one of the two ways."""
    request.param(Half)
    yield
    del ATTENTIONS['Half']


@pytest.mark.parametrize('scope', ['mmdet', 'mmpretrain', 'mmstepnet'])
@pytest.mark.parametrize('name', ['Half', 'mmstepnet.Half', Half])
def test_found_in_both_ways(registered, name, scope):
    with DefaultScope.overwrite_default_scope(scope):
        assert type(build_attention(dict(type=name), 4)) is Half
        model = StepResNetCIFAR(20, attention=dict(type=name))
    assert type(model.layer1[1].step.attention) is Half
    assert registry.ATTENTIONS.get('Half') is Half
    assert isinstance(
        registry.ATTENTIONS.build(dict(type='Half', channels=4)), Half)


def test_a_name_is_given_once(registered):
    other = type('Half', (ChannelGate, ), {})
    for register in (ATTENTIONS.register,
                     registry.ATTENTIONS.register_module()):
        with pytest.raises(KeyError, match='Half.* already'):
            register(other)


def test_the_packages_own():
    assert registry.ATTENTIONS.get('SE') is SE
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
