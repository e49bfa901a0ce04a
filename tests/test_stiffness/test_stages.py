"""The rules by which found steps are put in blocks and stages."""

import pytest
import torch
import torch.nn as nn
from torchvision import models
from torchvision.models.resnet import BasicBlock

from mmstepnet import find_steps
from mmstepnet.steps.finding.additions import PROJECTS
from tests.utils import Adds


def wrapper(width=8):
    """As in SHViT and MSRA's EfficientViT."""
    return Adds(nn.Linear(width, width))


class Block(nn.Module):
    """A block of wrappers that are called one after the other."""

    def __init__(self):
        super().__init__()
        self.conv, self.ffn = wrapper(), wrapper()

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
        mlp = Adds(nn.Sequential(
            nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)))
        return nn.Sequential(nn.Sequential(wrapper(), mlp), wrapper())

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
        ('2.0.attn_step', '2', None), ('2.0.mlp_step', '2', None)]


def test_wrappers_in_no_list_are_blocks_of_their_own():
    assert names(Block(), torch.rand(2, 5, 8)) == [
        ('conv', '', 'first of its stage'), ('ffn', '', None)]


class Partial(nn.Module):
    """A stage that passes half of its channels by, as in CSPNet."""

    def __init__(self, width, blocks):
        super().__init__()
        self.main, self.short = (nn.Linear(8, width) for _ in range(2))
        self.final = nn.Linear(width, 8)
        self.blocks = nn.Sequential(*(wrapper(width) for _ in range(blocks)))

    def forward(self, x):
        return self.final(self.blocks(self.main(x)) * self.short(x))


FIRST = 'first of its stage'


@pytest.mark.parametrize('depths, left_out', [
    ((1, 1, 1), [None, None, None]),
    ((1, 2, 3), [None, FIRST, None, FIRST, None, None]),
])
def test_a_block_alone_that_projects_nothing_is_no_first_one(depths, left_out):
    """RTMDet-tiny has no others; YOLOv5-s has two."""
    model = nn.Sequential(*(
        nn.Sequential(nn.Linear(8, 8), Partial(width, n))
        for width, n in zip((4, 5, 6), depths)))
    assert names(model, torch.rand(2, 5, 8)) == [
        (f'{k}.1.blocks.{n}', f'{k}.1.blocks', why) for (k, n), why in zip(
            [(k, n) for k, d in enumerate(depths) for n in range(d)],
            left_out)]


def test_one_block_alone_is_in_no_stage():
    assert names(Partial(4, 1), torch.rand(2, 5, 8)) == [
        ('blocks.0', None, 'no container')]


def test_a_block_alone_that_projects_is_the_first_one():
    model = models.ResNet(BasicBlock, [1, 2, 1, 1])
    assert [(s.name, s.left_out) for s in find_steps(
        model, torch.rand(1, 3, 32, 32)) if s.block] == [
        ('layer1.0', None), ('layer2.0', PROJECTS), ('layer2.1', None),
        ('layer3.0', PROJECTS), ('layer4.0', PROJECTS)]


def test_a_block_that_runs_on_is_the_first_one_once():
    class Again(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.Sequential(wrapper())

        def forward(self, x):
            return self.blocks[0](self.blocks[0](self.blocks[0](x)))

    assert names(Again(), torch.rand(2, 5, 8)) == [
        ('blocks.0', 'blocks', FIRST), ('blocks.0#2', 'blocks', None),
        ('blocks.0#3', 'blocks', None)]


class Both(nn.Module):
    """Two layers that are added, as in RepVGG."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.a(x) + self.b(x)


def test_a_block_alone_whose_branch_adds_projects_nothing():
    """As in RepGhostNet."""
    model = nn.Sequential(
        nn.Sequential(Adds(Both())), nn.Linear(8, 8),
        nn.Sequential(Adds(Both()), Adds(Both())))
    found = [s for s in names(model, torch.rand(2, 5, 8)) if s[2] != PROJECTS]
    assert found == [
        ('0.0', '0', None), ('2.0', '2', FIRST), ('2.1', '2', None)]


class Nested(nn.Module):
    """A branch that adds to its own state, as MViTv2's attention does."""

    def __init__(self, shortcut):
        super().__init__()
        self.shortcut, self.inner = shortcut, wrapper()

    def forward(self, x):
        return self.shortcut(x) + self.inner(x)


def test_a_step_in_the_branch_of_a_block_that_projects_is_none():
    model = nn.Sequential(Nested(nn.Identity()), Nested(nn.Linear(8, 8)),
                          Nested(nn.Identity()))
    found = {s.owner: s.left_out for s in find_steps(
        model, torch.rand(2, 5, 8))}
    inner = dict.fromkeys(('0.inner', '1.inner', '2.inner'),
                          'part of the branch of another step')
    assert found == inner | {'0': FIRST, '1': PROJECTS, '2': None}


class Stage(nn.Module):
    """Blocks behind a step that stands in no list, as in FastViT."""

    def __init__(self):
        super().__init__()
        self.position = wrapper()
        self.blocks = nn.Sequential(Block(), Block())

    def forward(self, x):
        return self.blocks(self.position(x))


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(Both())
        self.stages = nn.Sequential(Stage())

    def forward(self, x):
        return self.stages(self.stem(x))


def test_lists_of_different_parts_are_no_blocks():
    found = names(Network(), torch.rand(2, 5, 8))
    assert found[1] == ('stages.0.position', None, 'no container')
    assert [s[1] for s in found[2:]] == ['stages.0.blocks'] * 4


class TwoStreams(nn.Module):
    """Pixels that are also projected into patches, as in TNT."""

    def __init__(self):
        super().__init__()
        self.attn, self.mlp, self.proj, self.patches = (
            nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        pixels, patches = x
        pixels = pixels + self.attn(pixels)
        pixels = pixels + self.mlp(pixels)
        patches = patches + self.proj(pixels)
        return pixels, patches + self.patches(patches)


def test_a_stream_that_is_also_projected_has_steps():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Linear(8, 8)
            self.blocks = nn.Sequential(*(TwoStreams() for _ in range(3)))

        def forward(self, x):
            return self.blocks((x, self.embed(x)))[1]

    found = [s.left_out for s in find_steps(Model(), torch.rand(2, 5, 8))
             if s.block == 'blocks.1']
    assert found == [None, None, None]
