"""What the callbacks of all trainers do alike, without a trainer."""

import torch
import torch.nn as nn

from mmstepnet.integrations.trainers import stiffness_of


def test_a_device_without_doubles_ends_no_training(caplog):
    """What it cannot hold stays on the CPU, where one process needs no more.

    PyTorch for another machine has no MPS at all, and says so likewise.
    """
    assert stiffness_of(nn.Linear(2, 2), [torch.rand(1, 2)], None,
                        torch.device('mps')) == {}
    assert 'the stiffness was not measured' in caplog.text
