"""Branches that something foreign computed, and what is no branch."""

import pytest
import torch
import torch.nn as nn

from mmstepnet import find_steps
from mmstepnet.stiffness import TrajectoryRecorder
from tests.test_stiffness.written_blocks import X, assert_ratio, build
from tests.utils import perturb


class Foreign(nn.Linear):
    """A linear layer that no mode sees, as an extension of C++."""

    def forward(self, x):
        weight, bias = (t.detach().numpy() for t in (self.weight, self.bias))
        y = x.numpy() @ weight.T + bias
        return self.result(x, torch.from_numpy(y))

    def result(self, x, y):
        return y


class InBuffer(Foreign):
    """One that writes in memory that a mode saw being made."""

    def result(self, x, y):
        out = x.new_empty(x.shape)
        out.numpy()[:] = y.numpy()
        return out


@pytest.mark.parametrize('layer', [Foreign, InBuffer])
def test_what_something_foreign_computed_is_a_branch(layer):
    model = build(lambda b, x: x + b.norm(b.a(b.b(x))))
    for block in model:
        block.a = perturb(layer(8, 8))
    with TrajectoryRecorder(model) as recorder, torch.no_grad():
        model(X)
    assert_ratio(recorder, model, X, lambda b, x: b.norm(b.a(b.b(x))))


def test_foreign_code_before_a_child():
    """A detour by NumPy in the code of the block, given to a layer."""
    def branch(block, x):
        return block.b(torch.from_numpy(x.numpy()[..., ::-1].copy()))

    model = build(lambda block, x: x + branch(block, x))
    with TrajectoryRecorder(model) as recorder, torch.no_grad():
        model(X)
    assert_ratio(recorder, model, X, branch)


class Positions(nn.Module):
    """Told by the shape alone, or learnt: foreign to the state."""

    def __init__(self, learnt):
        super().__init__()
        self.table = nn.Parameter(torch.rand(X.shape)) if learnt else None

    def forward(self, x):
        if self.table is not None:
            return self.table[:, :x.shape[1]]
        out = torch.zeros(x.shape)
        out[..., ::2] = torch.arange(6.)[:, None].sin()
        return out


@pytest.mark.parametrize('learnt', [True, False])
def test_positions_that_a_module_makes_are_no_branch(learnt):
    model = build(lambda b, x: b.norm(b.b(x + b.a(x))))
    for block in model:
        block.a = Positions(learnt)
    assert find_steps(model, X) == []
