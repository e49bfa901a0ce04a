"""Scores of blocks and their ablation, against formulas and by hand."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    checkpoint_wrapper,
)

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


class InPlace(Adds):
    """Overwrites its input."""

    def forward(self, x):
        return x.add_(self.f(x))


def build(block=Adds):
    return nn.Sequential(
        nn.Linear(6, 6),
        nn.Sequential(*(block(nn.Linear(6, 6)) for _ in range(4))),
        nn.Linear(6, 1),
        nn.Tanh(),
    ).requires_grad_(False)


def expected(model, x, score):
    """The score of each block but the first, in float64."""
    x, found = model[0](x), []
    for block in model[1]:
        f, y = block.f(x).double(), block(x.clone())
        a, b = (t.double().numpy() for t in (x, y))
        norm = np.linalg.norm(a, axis=1)
        if score == 'influence':
            found.append(1 - (a * b).sum(1) / norm / np.linalg.norm(b, axis=1))
        else:
            found.append(
                np.linalg.norm(f.numpy(), axis=1)
                / (1 if score == 'f_norm' else norm)
            )
        x = y
    return np.mean(found[1:], 1)


@pytest.mark.parametrize(
    'block, dtype',
    [(Adds, torch.float32), (InPlace, torch.float32), (Adds, torch.bfloat16)],
)
@pytest.mark.parametrize('score', SCORES)
def test_scores(score, block, dtype, capsys):
    """Near 1 a cosine in bfloat16 has two or three digits."""
    model, x = build(block).to(dtype), X.to(dtype)
    found = block_scores(model.train(), x.split(2), score)
    assert list(found) == NAMES and model.training
    assert capsys.readouterr() == ('', '')
    np.testing.assert_allclose(
        list(found.values()), expected(model, x, score), rtol=1e-5
    )


def test_a_block_of_two_steps_has_their_sum():
    """Also in a wrapper, as a compiled or a checkpointed one."""
    timm = pytest.importorskip('timm')
    vit = timm.models.vision_transformer.VisionTransformer(
        32, 8, embed_dim=32, depth=3, num_heads=4, num_classes=3
    )
    image = torch.rand(2, 3, 32, 32)
    steps = measure_stiffness(vit, [image]).f_norm.mean(0)
    vit.blocks[1] = checkpoint_wrapper(vit.blocks[1])
    found = block_scores(vit, [image], 'f_norm')
    assert found == dict(
        zip(['blocks.1', 'blocks.2'], steps[::2] + steps[1::2])
    )
    assert list(block_scores(vit, [image], 'influence')) == list(found)


def test_ablation(capsys):
    """What was interrupted goes on; a bar is shown if it is asked for."""
    model = build()

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
    assert len(calls) == 3 + 4 and capsys.readouterr() == ('', '')
    ablate_blocks(model, evaluate, example=X, bar=True)
    assert '4/4' in capsys.readouterr().err
    assert list(model.modules()) == modules
