"""Networks without some of their blocks, against the same with hooks."""

import copy
import pickle

import pytest
import torch
from torch import nn

from mmstepnet import (
    fold,
    insert_steps,
    measure_stiffness,
    remove_blocks,
    remove_steps,
)
from mmstepnet.steps import RemovedBlock
from mmstepnet.steps.removal import prepare_removal
from tests.test_steps.families import find_family
from tests.test_steps.insertion import doubled, outputs, perturb
from tests.test_steps.test_insert_families import CASES

FEWER = {'ResNet, bottleneck': 2, 'ResNeSt': 0, 'CaiT': 2, 'EfficientViT': 7,
         'BERT': 0, 'mmpretrain ResNet-50, checkpointed': 5}
"""Blocks that may go where they are not those that take steps: some project,
end in a norm or join class and patch tokens."""
MORE = {'mmdet ResNet-50, frozen, norms in eval mode': 5}


def bypass(block):
    """Make a block return its first argument, in its form."""
    def keep(block, args, kwargs):
        state.append(next(iter((*args, *kwargs.values()))).clone())

    def hand_on(block, args, out):
        x = state.pop()
        return (x, *[None] * (len(out) - 1)) if isinstance(out, tuple) else x

    state = []
    return (block.register_forward_pre_hook(keep, with_kwargs=True),
            block.register_forward_hook(hand_on))


@pytest.mark.parametrize('library, name', CASES)
def test_removed_as_if_bypassed(library, name):
    family = find_family(library, name)
    model = perturb(family.build()).double()
    model.train(False)
    inputs = doubled(family.inputs())
    names = list(prepare_removal(model, None, inputs))
    assert len(names) == {**FEWER, **MORE}.get(name, family.blocks) or (
        library == 'transformers' and 'bottleneck' in name)
    if not names:
        return
    handles = [handle for block in names
               for handle in bypass(model.get_submodule(block))]
    wanted = outputs(model, inputs)
    for handle in handles:
        handle.remove()
    keys = set(model.state_dict())
    assert remove_blocks(model, names, inputs) == names
    for out, other in zip(outputs(model, inputs), wanted, strict=True):
        assert torch.equal(out, other)
    assert set(model.state_dict()) == {
        key for key in keys if not key.startswith(
            tuple(f'{block}.' for block in names))}
    assert all(isinstance(model.get_submodule(block), RemovedBlock)
               for block in names)


class Block(nn.Module):
    def __init__(self, activation):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.activation = activation

    def forward(self, x):
        return self.activation(x + self.conv(x))


class InPlace(Block):
    def forward(self, x):
        x += self.conv(x)
        return self.activation(x)


class PostNorm(Block):
    def __init__(self):
        super().__init__(nn.BatchNorm2d(4))


def chain(*blocks):
    return nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU(), nn.Sequential(*blocks))


EXAMPLE = torch.zeros(1, 4, 6, 6)


@pytest.mark.parametrize('cls', [Block, InPlace])
def test_activations_that_change_a_state(cls):
    remove_blocks(chain(*(cls(nn.ReLU()) for _ in range(3))), '2', EXAMPLE)
    for kind, what in ((nn.SiLU, 'silu'), (nn.GELU, 'gelu')):
        model = chain(*(cls(kind()) for _ in range(3)))
        before = list(model.modules())
        with pytest.raises(ValueError, match=rf'2\.1 applies {what} to the s'):
            remove_blocks(model, ['2.1'], EXAMPLE)
        assert list(model.modules()) == before


def test_a_relu_behind_no_relu():
    model = nn.Sequential(*(InPlace(nn.ReLU()) for _ in range(3)))
    with pytest.raises(ValueError, match='0 applies relu to the sum'):
        remove_blocks(model, '0', EXAMPLE)
    assert remove_blocks(model, ['1', '2'], EXAMPLE) == ['1', '2']


def test_refusals():
    model = chain(PostNorm(), PostNorm(), PostNorm())
    with pytest.raises(ValueError, match=r'2\.2 applies .*batch_norm to the'):
        remove_blocks(model, '2.2', EXAMPLE)
    with pytest.raises(ValueError, match='ReLU.*means no residual block'):
        remove_blocks(model, nn.ReLU, EXAMPLE)
    with pytest.raises(ValueError, match='made up for a model of its class'):
        remove_blocks(model, '2.1')
    with pytest.raises(ValueError, match='on the meta device'):
        remove_blocks(copy.deepcopy(model).to('meta'), '2.1', EXAMPLE)
    dead = chain(*(Block(nn.ReLU()) for _ in range(3)))
    nn.init.constant_(dead[0].weight, 0)
    nn.init.constant_(dead[0].bias, -1)
    with pytest.raises(ValueError, match='a state of 0 on the example'):
        remove_blocks(dead, '2.0', EXAMPLE)


def resnet():
    models = pytest.importorskip('torchvision').models
    torch.manual_seed(0)
    return perturb(models.resnet18(num_classes=3)).eval()


IMAGES = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def test_save_load_and_pickle():
    model = resnet()
    remove_blocks(model, ['layer1.0', 'layer3.1'])
    other = resnet()
    with pytest.raises(RuntimeError, match='Missing key'):
        other.load_state_dict(model.state_dict())
    remove_blocks(other, ['layer1.0', 'layer3.1'])
    other.load_state_dict(model.state_dict())
    wanted = model(IMAGES)
    assert torch.equal(other(IMAGES), wanted)
    assert torch.equal(pickle.loads(pickle.dumps(model))(IMAGES), wanted)
    assert len(model.layer1) == 2
    assert str(model.layer1[0]) == 'RemovedBasicBlock()'


def test_steps_and_fold():
    """Steps before or after; their blocks may go, too."""
    model, other = resnet(), resnet()
    remove_blocks(model, 'layer1.0')
    assert insert_steps(model) == [
        'layer1.1', 'layer2.1', 'layer3.1', 'layer4.1']
    insert_steps(other)
    assert remove_blocks(other, 'layer1.0') == ['layer1.0']
    wanted = model(IMAGES)
    assert torch.equal(other(IMAGES), wanted)
    torch.testing.assert_close(fold(other)(IMAGES), wanted)
    found = measure_stiffness(other, [IMAGES])
    assert found.blocks == ['layer1.1', 'layer2.1', 'layer3.1', 'layer4.1']
    remove_steps(other)
    assert torch.equal(other(IMAGES), wanted)


def test_compile_and_wrappers():
    model = resnet()
    model.layer2[1] = torch.compile(model.layer2[1], backend='eager')
    remove_blocks(model, ['layer1.0', 'layer2.1'])
    assert isinstance(model.layer2[1], RemovedBlock)
    wanted = model(IMAGES)
    compiled = torch.compile(model, backend='eager', fullgraph=True)
    torch.testing.assert_close(compiled(IMAGES), wanted)
    program = torch.export.export(model, (IMAGES, ))
    torch.testing.assert_close(program.module()(IMAGES), wanted)


def test_onnx(tmp_path):
    pytest.importorskip('onnxscript')
    runtime = pytest.importorskip('onnxruntime')
    model = chain(*(Block(nn.ReLU()) for _ in range(3))).eval()
    remove_blocks(model, ['2.0', '2.2'], EXAMPLE)
    maps = torch.rand(EXAMPLE.shape)
    torch.onnx.export(model, (maps, ), tmp_path / 'model.onnx', dynamo=True)
    session = runtime.InferenceSession(tmp_path / 'model.onnx')
    out, = session.run(None, {session.get_inputs()[0].name: maps.numpy()})
    torch.testing.assert_close(torch.from_numpy(out), model(maps))


def test_parts_of_a_transformer():
    """An attention or an MLP alone gives 0, where its step's f is then 0."""
    vit = pytest.importorskip('timm').models.vision_transformer
    torch.manual_seed(0)
    model = vit.VisionTransformer(
        32, 8, embed_dim=32, depth=3, num_heads=4, num_classes=3).eval()
    image = torch.rand(1, 3, 32, 32)
    for name, why in (('blocks.0.norm1', 'computes no f alone'),
                      ('blocks.1.mlp.fc2', 'returns something else')):
        with pytest.raises(ValueError, match=f'{name} {why}'):
            remove_blocks(model, name)
    x, blocks = model._pos_embed(model.patch_embed(image)), model.blocks
    x = x + blocks[0].mlp(blocks[0].norm2(x))
    x = x + blocks[2].attn(blocks[2].norm1(x))
    wanted = model.forward_head(model.norm(x))
    names = ['blocks.0.attn', 'blocks.1', 'blocks.2.mlp']
    assert remove_blocks(model, names) == names
    assert torch.equal(model(image), wanted)


def test_a_cache_counts_layers():
    hf = pytest.importorskip('transformers')
    model = hf.LlamaModel(hf.LlamaConfig(
        hidden_size=32, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=64, vocab_size=50)).eval()
    words = dict(input_ids=torch.arange(12).view(2, 6))
    with pytest.raises(ValueError, match=r'layers\.1 has a number of its own'):
        remove_blocks(model, 'layers.1', words)
    model.config.use_cache = False
    handles = bypass(model.layers[1])
    wanted = model(**words)[0]
    for handle in handles:
        handle.remove()
    remove_blocks(model, 'layers.1', words)
    out = model(**words, output_hidden_states=True)
    assert torch.equal(out[0], wanted)
    assert len(out.hidden_states) == 4
