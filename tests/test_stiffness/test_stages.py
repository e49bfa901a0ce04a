"""The rules by which found steps are put in blocks and stages."""

import torch
import torch.nn as nn

from mmstepnet import find_steps


class Residual(nn.Module):
    """Adds what a branch makes, as in SHViT and MSRA's EfficientViT."""

    def __init__(self):
        super().__init__()
        self.m = nn.Linear(8, 8)

    def forward(self, x):
        return x + self.m(x)


class Block(nn.Module):
    """A block of wrappers that are called one after the other."""

    def __init__(self):
        super().__init__()
        self.conv, self.ffn = Residual(), Residual()

    def forward(self, x):
        return self.ffn(self.conv(x))


def names(model, x):
    return [(s.name, s.stage, s.left_out) for s in find_steps(model, x)]


def test_a_stage_is_a_list_rather_than_a_block_of_wrappers():
    model = nn.ModuleDict({'blocks': nn.Sequential(Block(), Block())})
    model.forward = model['blocks'].forward
    assert names(model, torch.rand(2, 5, 8)) == [
        ('blocks.0.attn_step', 'blocks', 'first of its stage'),
        ('blocks.0.mlp_step', 'blocks', 'first of its stage'),
        ('blocks.1.attn_step', 'blocks', None),
        ('blocks.1.mlp_step', 'blocks', None),
    ]


def test_a_block_may_be_a_list_of_wrappers_as_in_cpubone():
    def block():
        mlp = Residual()
        mlp.m = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
        return nn.Sequential(nn.Sequential(Residual(), mlp), Residual())

    model = nn.Sequential(nn.Linear(8, 8), nn.Sequential(block(), block()))
    assert names(model, torch.rand(2, 5, 8)) == [
        ('1.0.0.0', '1', 'first of its stage'),
        ('1.0.0.1', '1', 'first of its stage'),
        ('1.0.1', '1', 'first of its stage'),
        ('1.1.0.0', '1', None),
        ('1.1.0.1', '1', None),
        ('1.1.1', '1', None),
    ]


def test_a_stage_of_one_block_beside_a_longer_one():
    model = nn.Sequential(
        nn.Sequential(Block(), Block()), nn.Linear(8, 8),
        nn.Sequential(Block()))
    assert names(model, torch.rand(2, 5, 8))[4:] == [
        ('2.0.attn_step', '2', 'first of its stage'),
        ('2.0.mlp_step', '2', 'first of its stage'),
    ]


def test_a_stage_of_one_block_of_its_own_class_as_in_mobilenet():
    model = nn.Sequential(
        nn.Sequential(Residual()),
        nn.Sequential(nn.Linear(8, 8), Block(), Block()))
    assert names(model, torch.rand(2, 5, 8))[0] == (
        '0.0', '0', 'first of its stage')


def test_wrappers_in_no_list_are_blocks_of_their_own():
    assert names(Block(), torch.rand(2, 5, 8)) == [
        ('conv', '', 'first of its stage'), ('ffn', '', None)]
