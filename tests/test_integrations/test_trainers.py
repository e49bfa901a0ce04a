"""What the callbacks of all trainers do alike, without a trainer."""

import pytest
import torch
import torch.nn as nn

from mmstepnet import ResidualStep
from mmstepnet.attentions import SE
from mmstepnet.integrations.trainers import check_has_steps, stiffness_of


class Own(nn.Module):
    """An attention that is not registered."""

    def forward(self, x, f):
        return x.mean((2, 3), keepdim=True)


@pytest.mark.parametrize('attention, what', [
    (None, 'has no steps to save; call insert_steps'),
    (Own(), 'Own, which is not registered')])
def test_what_cannot_be_saved_is_refused_before_the_training(attention, what):
    """Not at the first checkpoint, as by save_steps."""
    check_has_steps(nn.Sequential(ResidualStep(SE(16))))
    with pytest.raises(ValueError, match=f'{what}.* or give save=False'):
        check_has_steps(nn.Sequential(ResidualStep(attention)))


def test_a_device_without_doubles_ends_no_training(caplog):
    """What it cannot hold stays on the CPU, where one process needs no more.

    PyTorch for another machine has no MPS at all, and says so likewise.
    """
    assert stiffness_of(nn.Linear(2, 2), [torch.rand(1, 2)], None,
                        torch.device('mps')) == {}
    assert 'the stiffness was not measured' in caplog.text
