"""Names by which configs choose an attention."""

import pytest
import torch
from mmengine.registry import DefaultScope

from mmstepnet.attentions import ATTENTIONS, ChannelGate, build_attention
from mmstepnet.models import StepResNetCIFAR


class Half(ChannelGate):
    """A class of a user's own."""

    pooled = ('f_mean', )

    def forward(self, f_mean):
        return torch.full_like(f_mean, 0.5)


@pytest.mark.parametrize('name', ['Half', 'mmstepnet.Half', Half])
def test_found_in_any_scope_and_given_once(name, monkeypatch):
    monkeypatch.setitem(ATTENTIONS, 'Half', Half)
    for scope in ('mmdet', 'mmpretrain', 'mmstepnet'):
        with DefaultScope.overwrite_default_scope(scope):
            assert type(build_attention(dict(type=name), 4)) is Half
            model = StepResNetCIFAR(20, attention=dict(type=name))
        assert type(model.layer1[1].step.attention) is Half
    assert ATTENTIONS.register(Half) is Half
    with pytest.raises(KeyError, match='Half.* already'):
        ATTENTIONS.register(type('Half', (ChannelGate, ), {}))
