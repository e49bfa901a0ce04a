import pytest
import torch

from mmstepnet.models import StepResNeXt
from tests.utils import perturb


@pytest.mark.parametrize('host, width, groups', [
    ('mmpretrain', 'width_per_group', 32), ('mmdet', 'base_width', 1)])
def test_plain_form_is_the_hosts(host, width, groups):
    theirs = pytest.importorskip(f'{host}.models').ResNeXt
    outs = dict(depth=50, out_indices=(0, 1, 2, 3), groups=8, **{width: 6})
    plain = perturb(theirs(**outs))
    plain.eval()  # which returns None
    images = torch.rand(2, 3, 70, 54)
    model = StepResNeXt(attention=None, host=host, **outs)
    model.load_state_dict(plain.state_dict())
    for ours, expected in zip(model.eval()(images), plain(images)):
        assert torch.equal(ours, expected)
    assert StepResNeXt(50, host=host).groups == groups
    with pytest.raises(ValueError, match='preact'):
        StepResNeXt(50, preact=True, host=host)
