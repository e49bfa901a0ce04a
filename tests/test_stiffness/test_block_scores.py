"""Scores of blocks and their ablation, against formulas and by hand."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from mmstepnet import (
    ablate_blocks,
    block_scores,
    measure_stiffness,
    remove_blocks,
)
from mmstepnet.stiffness import SCORES
from tests.utils import Adds

NAMES = ['1.1', '1.2', '1.3']
X = torch.rand(5, 6, generator=torch.Generator().manual_seed(0))


class Wrapper(nn.Module):
    """As a compiled or a checkpointed block."""

    def __init__(self, block):
        super().__init__()
        self._orig_mod = block

    def forward(self, x):
        return self._orig_mod(x)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 6),
        nn.Sequential(*(Adds(nn.Linear(6, 6)) for _ in range(4))),
        nn.Linear(6, 1), nn.Tanh()).requires_grad_(False)


def states(model):
    x = model[0](X)
    for block in model[1]:
        f = block.f(x)
        yield x.detach().double().numpy(), f.detach().double().numpy()
        x = x + f


def expected(model, score):
    norm = np.linalg.norm
    x, f = map(np.array, zip(*list(states(model))[1:]))
    nsi = norm(f, axis=2) / norm(x, axis=2)
    if score == 'f_norm':
        return norm(f, axis=2).mean(1)
    if score == 'influence':
        y = x + f
        return 1 - ((x * y).sum(2) / norm(x, axis=2) / norm(y, axis=2)
                    ).mean(1)
    return nsi.mean(1)


@pytest.mark.parametrize('score', SCORES)
def test_scores(model, score):
    found = block_scores(model.train(), X.split(2), score)
    assert list(found) == NAMES
    np.testing.assert_allclose(
        list(found.values()), expected(model, score), rtol=1e-5)
    assert model.training


def test_influence_in_half_precision(model):
    """Near 1 a cosine in bfloat16 has two or three digits."""
    x = model.bfloat16()[0](X.bfloat16())
    found = block_scores(model, [X.bfloat16()], 'influence')
    for k, block in enumerate(model[1]):
        a, x = x.double().numpy(), block(x)
        b = x.double().numpy()
        if k:
            cosine = (a * b).sum(1) / np.linalg.norm(a, axis=1) / (
                np.linalg.norm(b, axis=1))
            assert found[f'1.{k}'] == pytest.approx(
                1 - cosine.mean(), rel=1e-5)


def test_influence_of_blocks_that_overwrite_their_input(model):
    wanted = block_scores(model, [X], 'influence')
    for block in model[1]:
        block.forward = lambda x, f=block.f: x.add_(f(x))
    assert block_scores(model, [X], 'influence') == pytest.approx(wanted)


def test_a_block_of_two_steps_has_their_sum():
    timm = pytest.importorskip('timm')
    vit = timm.models.vision_transformer.VisionTransformer(
        32, 8, embed_dim=32, depth=3, num_heads=4, num_classes=3)
    image = torch.rand(2, 3, 32, 32)
    found = block_scores(vit, [image], 'f_norm')
    steps = measure_stiffness(vit, [image]).f_norm.mean(0)
    assert found == dict(
        zip(['blocks.1', 'blocks.2'], steps[::2] + steps[1::2]))
    vit.blocks[1] = Wrapper(vit.blocks[1])
    assert list(block_scores(vit, [image], 'influence')) == list(found)


def test_ablation(model):
    """What was interrupted goes on."""
    def evaluate(model):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return float(model(X).sum())

    calls, wanted, found, modules = [], {}, {}, list(model.modules())
    for name in ('1.0', *NAMES):
        other = copy.deepcopy(model)
        remove_blocks(other, [name], X)
        wanted[name] = float(model(X).sum()) - float(other(X).sum())
    with pytest.raises(KeyboardInterrupt):
        ablate_blocks(model, evaluate, example=X, found=found)
    assert found == {'1.0': wanted['1.0']}
    assert ablate_blocks(model, evaluate, example=X, found=found) == wanted
    assert len(calls) == 3 + 4
    assert list(model.modules()) == modules
