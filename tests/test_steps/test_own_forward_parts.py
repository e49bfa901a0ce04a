"""Steps in a forward of its own: checkpoints, maps of tokens, parts."""

import copy

import pytest
import torch
import torch.nn as nn
from torch.utils.checkpoint import checkpoint
from torchvision.models import VisionTransformer, resnet18

from mmstepnet import insert_steps
from mmstepnet.attentions import choose_step
from tests.test_steps.test_own_forward_limits import (
    MAP,
)
from tests.utils import TORCH_21

from . import own_forward_blocks as blocks
from .insertion import perturb
from .test_own_forward import C, random, stack


def test_decoders_of_saturated_attention():
    """In single precision no weight but the largest changes a value then."""
    example = torch.randn(2, 6, C)
    for kind in (blocks.Encoder, blocks.Causal):
        model = nn.Sequential(*(kind() for _ in range(3)))
        with torch.no_grad():
            for block in model:
                block.attn.weight.mul_(20)
        if kind is blocks.Causal:
            with pytest.raises(ValueError, match='is a decoder'):
                insert_steps(model, example=example)
        else:
            assert insert_steps(model, example=example) == ['0', '1', '2']


class Checkpointed(blocks.Conv):
    """Checkpoints its own addition, as the blocks of OpenMMLab do."""

    with_cp = True

    def forward(self, x):
        self.seen = x.shape
        if self.with_cp and x.requires_grad:
            return checkpoint(super().forward, x, use_reentrant=False)
        return super().forward(x)


def test_a_checkpoint_that_the_block_can_leave_out():
    model, x = stack(Checkpointed)
    model.train()
    twin = copy.deepcopy(model)
    for block in twin:
        block.with_cp = False
    runs = []
    model[1].conv.register_forward_hook(lambda *_: runs.append(1))
    found, wanted = x.clone().requires_grad_(), x.clone().requires_grad_()
    model(found).square().sum().backward()
    assert len(runs) == 2 and model[1].with_cp
    assert [block.seen for block in model] == [x.shape] * len(model)
    twin(wanted).square().sum().backward()
    torch.testing.assert_close(found.grad, wanted.grad)
    for p, q in zip((*model.parameters(), *model.buffers()),
                    (*twin.parameters(), *twin.buffers())):
        torch.testing.assert_close(p.grad, q.grad)
    if TORCH_21:
        pytest.skip("PyTorch 2.1's Dynamo follows no function mode")
    torch._dynamo.reset()
    compiled = torch.compile(model, backend='aot_eager')
    again = x.clone().requires_grad_()
    compiled(again).square().sum().backward()
    torch.testing.assert_close(again.grad, wanted.grad)


class OnMap(nn.Sequential):
    """Blocks of tokens that are given the shape of their map."""

    class Block(blocks.LastChannels):

        def forward(self, x, hw_shape):
            return super().forward(x)

    def forward(self, x):
        for block in self:
            x = block(x, hw_shape=(5, 6))
        return x


def test_tokens_of_a_map_have_positions():
    model = OnMap(*(OnMap.Block() for _ in range(3))).double()
    x = random(4, 30, C)
    insert_steps(model, 'OursDepthwiseConv', example=x, init_step=None)
    perturb(model)
    wanted = x
    for block in model:
        f = block.f(wanted)
        maps = [t.transpose(1, 2).unflatten(2, (5, 6)) for t in (wanted, f)]
        dt = choose_step(block.step.attention, *maps)
        wanted = wanted + (maps[1] * dt).flatten(2).transpose(1, 2)
    torch.testing.assert_close(model(x), wanted)


def test_a_part_says_what_it_is_called_with():
    """In a model that takes what nobody knows, and of any precision."""

    class Wrapper(nn.Module):

        def __init__(self):
            super().__init__()
            self.net = VisionTransformer(32, 8, 2, 4, 32, 64, num_classes=5)

        def forward(self, batch, loss):
            return loss(self.net(batch['images']))

    model = Wrapper().to(torch.bfloat16).eval()
    assert insert_steps(model) == [
        f'net.encoder.layers.encoder_layer_{k}' for k in (0, 1)]
    with pytest.raises(RuntimeError, match='^net.encoder.layers.encoder_laye'):
        model.net.encoder.layers[0].ln_1.forward = lambda x: x + x
        model.net(torch.rand(1, 3, 32, 32).to(torch.bfloat16))
    nobody = nn.Sequential(nn.Linear(3, 3))
    with pytest.raises(ValueError, match='give example='):
        insert_steps(nobody)


def test_blocks_outside_of_a_backbone_are_named():

    class Detector(nn.Module):

        def __init__(self):
            super().__init__()
            self.backbone = nn.Sequential(blocks.Conv(), blocks.Conv())
            self.encoder = nn.Sequential(blocks.Encoder(), blocks.Encoder())

        def forward(self, x):
            return self.encoder(self.backbone(x).flatten(2).mT)

    example = torch.rand(2, *MAP[1:])
    model = Detector()
    assert insert_steps(model, blocks='encoder', example=example) == [
        'encoder.0', 'encoder.1']
    assert insert_steps(model, example=example) == ['backbone.0', 'backbone.1']


def test_described_blocks_beside_others():
    model = VisionTransformer(32, 8, 2, 4, 32, 64, num_classes=5)
    model.conv_proj = nn.Sequential(
        nn.Conv2d(3, 64, 1), resnet18().layer1, nn.Conv2d(64, 32, 8, 8))
    assert insert_steps(model) == [
        'conv_proj.1.0', 'conv_proj.1.1', 'encoder.layers.encoder_layer_0',
        'encoder.layers.encoder_layer_1']


def test_blocks_that_hold_others_are_named(caplog):
    """They take no steps, and nobody would see that."""
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.Sequential(blocks.Encoder(), blocks.Encoder())
            self.proj = nn.Linear(C, C)

        def forward(self, x):
            return x + self.proj(self.blocks(x))

    model = nn.Sequential(Outer(), Outer())
    found = insert_steps(model, example=torch.randn(2, 6, C))
    assert found == [f'{i}.blocks.{j}' for i in range(2) for j in range(2)]
    assert '0 holds other blocks, which take steps' in caplog.text
