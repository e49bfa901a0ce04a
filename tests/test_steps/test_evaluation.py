"""Networks that get ready for evaluation in a ``train`` of their own."""

import copy

import pytest
import torch
import torch.nn as nn

import mmstepnet
from mmstepnet.steps.removal import prepare_removal
from mmstepnet.steps.spots import find_places
from tests.utils import Adds

X = torch.randn(4, 5, 8, generator=torch.Generator().manual_seed(0))


class Block(Adds):
    """As LeViT's in MMPretrain: what evaluation needs is made in train."""

    def __init__(self):
        super().__init__(nn.Sequential(nn.BatchNorm1d(5), nn.Linear(8, 8)))

    @torch.no_grad()
    def train(self, mode=True):
        super().train(mode)
        vars(self).pop('kept', None)
        if not mode:
            self.kept = self.f[1].bias.exp()
        return self

    def forward(self, x):
        scale = self.f[1].bias.exp() if self.training else self.kept
        return x + scale * self.f(x)


class Net(nn.Sequential):
    """Freezes its first block, as OpenMMLab's backbones do."""

    def train(self, mode=True):
        super().train(mode)
        self[0].eval().requires_grad_(False)
        return self


def measured(model):
    return mmstepnet.measure_stiffness(model, [X]).nsi().mean()


def state(model):
    """All that a pass might change."""
    return str(
        [
            (
                block.training,
                block.f[0].training,
                hasattr(block, 'kept'),
                block.f[0].weight.requires_grad,
                block.state_dict(),
                [m._forward_hooks for m in block.modules()],
                [m._forward_pre_hooks for m in block.modules()],
            )
            for block in model
        ]
        + [torch.get_rng_state().tolist()]
    )


@pytest.mark.parametrize(
    'do',
    [
        pytest.param(
            lambda model: mmstepnet.find_steps(model, X), id='find_steps'
        ),
        pytest.param(measured, id='measured'),
        pytest.param(lambda model: find_places(model, X), id='find_places'),
        pytest.param(
            lambda model: prepare_removal(model, None, X), id='prepare_removal'
        ),
        pytest.param(
            lambda model: mmstepnet.ablate_blocks(model, measured, example=X),
            id='ablate_blocks',
        ),
    ],
)
def test_the_mode_is_that_of_the_network_and_restored(do):
    model = Net(*(Block() for _ in range(3))).train()
    model[1].f[0].eval()
    model[0].f[0].weight.requires_grad_(True)
    before = state(model)
    do(model)
    assert state(model) == before
    copy.deepcopy(model)
