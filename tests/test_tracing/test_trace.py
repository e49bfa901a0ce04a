"""A pass that is printed, and what insert_steps says of each block."""

import torch
import torch.nn as nn
from torchvision.models import resnet18

from mmstepnet import insert_steps
from mmstepnet.steps.insert import explain_blocks
from mmstepnet.tracing import trace_pass
from tests.small_networks import inputs, network

PRINTED = """
Sequential($1 4x5x8)
  0 TokenBlock($1)
    0.norm1 LayerNorm($1) -> $2 4x5x8
    0.attn Mix($2)
      add($2, $3 4x5x8): no step, no contraction lies between the operands
      0.attn.proj Linear($4 4x5x8) -> $5 4x5x8
      return -> $6 4x5x8
    0.drop Dropout($6) -> $6
    add($1, $6): a step
    0.norm2 LayerNorm($7 4x5x8) -> $8 4x5x8
    0.mlp Sequential($8)
      0.mlp.0 Linear($8) -> $9 4x5x16
      0.mlp.1 GELU($9) -> $10 4x5x16
      0.mlp.2 Linear($10) -> $11 4x5x8
      return -> $11
    add($7, $11): a step
    return -> $12 4x5x8
  return -> $12
"""


def test_printed():
    """Modules in the order in which they ran, and what was added."""
    model = network('tokens')[:1]
    assert str(trace_pass(model, inputs('tokens'))) == PRINTED.strip()


class Positions(nn.Module):
    """Adds what was not computed from its state."""

    def __init__(self):
        super().__init__()
        self.positions = nn.Parameter(torch.ones(2, 3))

    def forward(self, x):
        return x + self.positions


def test_why_a_sum_is_no_step():
    line = str(trace_pass(Positions(), torch.rand(2, 3))).splitlines()[1]
    why = 'neither operand was computed from the other'
    assert line == f'  add($1, $2 2x3): no step, {why}'


def test_blocks_are_explained_by_what_insert_steps_does():
    model = resnet18()
    lines = explain_blocks(model)
    assert not any('step' in name for name, _ in model.named_modules())
    taken = [name for name in lines if lines[name][0].startswith('takes')]
    assert taken == insert_steps(model)
    model = network('tokens')
    places = explain_blocks(model, inputs('tokens'))
    assert places['2'] == [
        'takes attn_step: x_t is what norm1 is given, f what drop is given',
        'takes mlp_step: x_t is what norm2 is given, f what mlp returns',
    ]


class Turned(nn.Module):
    """Adds another view of what its layer returns."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        return x + self.layer(x).mT


def test_another_view_is_told():
    """A step comes to a tensor, not to its values."""
    line = str(trace_pass(Turned(), torch.rand(2, 3, 3))).splitlines()[2]
    assert line == '  add($1, $2 as 2x3x3): a step'
