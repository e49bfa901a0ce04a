"""Networks without some of their blocks, against the same with hooks."""

import copy
import gc
import pickle
import weakref

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
from mmstepnet.tracing import hooked
from tests.families import family_cases, find_family
from tests.test_steps.insertion import doubled
from tests.utils import Adds, outputs, perturb, same

OTHERS = {
    'ResNet, bottleneck': 2,
    'mmdet ResNeSt-50': 0,
    'CaiT': 2,
    'CoaT': 0,
    'mmpretrain ResNet-50, checkpointed': 5,
    'mmdet ResNet-50, frozen, norms in eval mode': 5,
}
"""How many blocks may go where these are not those that take steps: some
project, end in a norm, join class and patch tokens, or are not chosen."""


def bypass(block, relu=False):
    """Make a block return its first argument, in its form."""

    def keep(block, args, kwargs):
        state.append(next(iter((*args, *kwargs.values()))).clone())

    def hand_on(block, args, out):
        x = state.pop().relu() if relu else state.pop()
        return (x, *[None] * (len(out) - 1)) if isinstance(out, tuple) else x

    state = []
    return (
        block.register_forward_pre_hook(keep, with_kwargs=True),
        block.register_forward_hook(hand_on),
    )


@pytest.mark.parametrize('library, name', family_cases())
def test_removed_as_if_bypassed(library, name):
    family = find_family(library, name)
    model = perturb(family.build()).double()
    model.train(False)
    inputs = doubled(family.inputs())
    removed = prepare_removal(model, None, inputs)
    names = list(removed)
    assert len(names) == OTHERS.get(name, family.blocks)
    if not names:
        return
    handles = [
        handle
        for block, other in removed.items()
        for handle in bypass(model.get_submodule(block), other.is_relu)
    ]
    with hooked(handles):
        wanted = outputs(model, inputs)
    keys = set(model.state_dict())
    assert remove_blocks(model, names, inputs) == names
    for out, other in zip(outputs(model, inputs), wanted, strict=True):
        assert torch.equal(out, other)
    assert set(model.state_dict()) == {
        key
        for key in keys
        if not key.startswith(tuple(f'{block}.' for block in names))
    }
    assert all(
        isinstance(model.get_submodule(block), RemovedBlock) for block in names
    )


class Block(Adds):
    """x + f(x) and what stands behind."""

    def __init__(self, after=nn.Identity, in_place=False, before=nn.Identity):
        super().__init__(nn.Conv2d(4, 4, 3, padding=1))
        self.after, self.in_place, self.before = after(), in_place, before()

    def forward(self, x):
        x = self.before(x)
        if self.in_place:
            x += self.f(x)
            return self.after(x)
        return self.after(super().forward(x))


class Halves(Block):
    """Adds a half of its state."""

    def forward(self, x):
        return torch.add(self.f(x), x, alpha=0.5)


def chain(make, count=3):
    return nn.Sequential(
        nn.Conv2d(4, 4, 1), nn.Sequential(*(make() for _ in range(count)))
    ).eval()


MAPS = torch.rand(2, 4, 6, 6, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize('in_place', [False, True])
@pytest.mark.parametrize(
    'after',
    [
        pytest.param(nn.Identity, id='nothing'),
        pytest.param(nn.ReLU, id='ReLU'),
        pytest.param(lambda: nn.ReLU(inplace=True), id='ReLU in place'),
        pytest.param(
            lambda: nn.Sequential(nn.Identity(), nn.ReLU()), id='a container'
        ),
    ],
)
def test_what_stands_behind_stays_itself(after, in_place):
    """A last ReLU is kept: it changes a state of both signs."""
    model = chain(lambda: Block(after, in_place))
    before, (first, _, last) = model
    with torch.no_grad():
        wanted = last(last.after(first(before(MAPS))))
        model[1][0], kept = nn.Identity(), first
        alone = last(last.after(before(MAPS)))
        model[1][0] = kept
        assert remove_blocks(model, '1.1', MAPS) == ['1.1']
        assert torch.equal(model(MAPS), wanted)
        assert remove_blocks(model, '1.0', MAPS) == ['1.0']
        assert torch.equal(model(MAPS), alone)


REFUSED = dict(
    silu=nn.SiLU,
    relu6=nn.ReLU6,
    dropout=nn.Dropout,
    pooling=lambda: nn.AvgPool2d(1),
    norm=lambda: nn.BatchNorm2d(4),
    twice=lambda: nn.Sequential(nn.ReLU(), nn.ReLU6()),
)


@pytest.mark.parametrize(
    'make',
    [
        *(lambda cls=cls: Block(cls) for cls in REFUSED.values()),
        lambda: Block(before=lambda: nn.Hardtanh(-9, 9)),
        Halves,
    ],
    ids=[*REFUSED, 'before', 'halves'],
)
def test_what_one_example_does_not_show_is_refused(make):
    """None of these changes a small state, in evaluation mode."""
    model = chain(make)
    before = list(model.modules())
    with pytest.raises(ValueError, match=r'1\.1 returns something else than'):
        remove_blocks(model, ['1.1'], MAPS)
    assert not prepare_removal(model, None, MAPS)
    assert list(model.modules()) == before


@pytest.mark.parametrize(
    'names, example, words',
    [
        pytest.param(
            nn.Conv2d, MAPS, 'means no residual block', id='no block'
        ),
        pytest.param(
            '1.1',
            None,
            'Sequential: it was not run; give example=',
            id='a model of its own',
        ),
        pytest.param(
            '1.1', MAPS[:, :3], 'not run on the example', id='another example'
        ),
    ],
)
def test_refusals(names, example, words):
    with pytest.raises(ValueError, match=words):
        remove_blocks(chain(Block), names, example)


def resnet():
    models = pytest.importorskip('torchvision').models
    torch.manual_seed(0)
    return perturb(models.resnet18(num_classes=3)).eval()


IMAGES = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def test_save_load_and_pickle():
    model, other = resnet(), resnet()
    remove_blocks(model, ['layer1.0', 'layer3.1'])
    with pytest.raises(ValueError, match=r'layer2\.0 projects its identity'):
        remove_blocks(model, 'layer2')
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
    """Steps before or after; their blocks may go, too, with their hooks."""
    model, other = resnet().double(), resnet().double()
    images = IMAGES.double()
    remove_blocks(model, 'layer1.0')
    rest = ['layer1.1', 'layer2.1', 'layer3.1', 'layer4.1']
    assert insert_steps(model) == rest
    insert_steps(other)
    assert remove_blocks(other, 'layer1.0') == ['layer1.0']
    wanted = model(images)
    assert torch.equal(other(images), wanted)
    same(fold(other)(images), wanted)
    assert measure_stiffness(other, [images]).blocks == rest
    remove_steps(other)
    assert torch.equal(other(images), wanted)
    model, other = chain(Block), chain(Block)
    other.load_state_dict(model.state_dict())
    insert_steps(model, example=MAPS)
    for block in (model, other):
        remove_blocks(block, '1.1', MAPS)
    assert torch.equal(model(MAPS), other(MAPS))


@pytest.mark.parametrize('compiled', ['block', 'stage', 'by itself'])
def test_compiled_before_and_afterwards(compiled):
    """What was compiled before is not run any more."""
    model, twin = (chain(lambda: Block(nn.ReLU)) for _ in range(2))
    twin.load_state_dict(model.state_dict())
    if compiled == 'by itself':
        model[1][1] = torch.compile(model[1][1], backend='eager')
    else:
        (model[1] if compiled == 'stage' else model[1][1]).compile(
            backend='eager'
        )
    model(MAPS)
    twin[1][1] = nn.ReLU()
    remove_blocks(model, '1.1', MAPS)
    assert torch.equal(model(MAPS), twin(MAPS))
    again = torch.compile(model, backend='eager', fullgraph=True)
    torch.testing.assert_close(again(MAPS), twin(MAPS))


def vit(kind='ViT', cls='Model', **options):
    """Of four layers, and its pictures."""
    hf = pytest.importorskip('transformers')
    if int(hf.__version__.split('.')[0]) < 5:
        pytest.skip('needs transformers 5')
    torch.manual_seed(0)
    return getattr(hf, f'{kind}{cls}')(
        getattr(hf, f'{kind}Config')(
            hidden_size=32,
            num_hidden_layers=4,
            num_attention_heads=2,
            image_size=32,
            patch_size=8,
            intermediate_size=64,
            **options,
        )
    ).eval()


@pytest.mark.parametrize('stepped', [False, True])
def test_hooks_of_a_removed_block_go_on(stepped):
    """Such as those by which transformers collects hidden states."""
    model, seen = vit(), []
    if stepped:
        insert_steps(model)
    model(IMAGES, output_hidden_states=True)  # which registers its hooks
    twin = copy.deepcopy(model)
    names = [
        name
        for name, m in twin.named_modules()
        if name.endswith('.1') and list(m.children())
    ]
    block = twin.get_submodule(names[0])
    handle = block.register_forward_hook(lambda *_: seen.append(1))
    with hooked(bypass(block)):
        wanted = twin(IMAGES)[0]
    assert remove_blocks(twin, names[0], IMAGES) == [names[0]]
    seen.clear()
    found = twin(IMAGES, output_hidden_states=True)
    assert len(found.hidden_states) == 5 and seen == [1]
    assert torch.equal(found[0], wanted)
    assert torch.equal(*found.hidden_states[1:3])
    if not stepped:  # else its hooks were sorted out
        handle.remove()
        twin(IMAGES)
        assert seen == [1]


def test_the_way_back_to_a_blocks_own_forward_goes():
    """accelerate keeps it beside a forward of its own, and puts it back."""
    model = resnet()
    block = model.layer1[1]
    block._old_forward, block.forward = block.forward, block.forward
    kept = weakref.ref(block)
    remove_blocks(model, ['layer1.1'])
    del block
    gc.collect()
    assert not hasattr(model.layer1[1], '_old_forward') and kept() is None


def test_what_a_backbone_is_asked_for_stays():
    options = dict(out_features=['stage2', 'stage4'], apply_layernorm=False)
    model = vit('Dinov2', 'Backbone', **options)
    with pytest.raises(
        ValueError,
        match=r'layer\.1 makes what out_features '
        r"names 'stage2'; leave that out there",
    ):
        remove_blocks(model, 'layer.1', IMAGES)
    wanted = model(IMAGES).feature_maps
    (name,) = remove_blocks(model, 'layer.2', IMAGES)
    found = model(IMAGES).feature_maps
    assert len(found) == len(wanted) == 2
    assert torch.equal(found[0], wanted[0])
    assert not torch.allclose(found[1], wanted[1])


def test_a_cache_counts_layers():
    """``generate`` reads another switch than the model's ``use_cache``."""
    hf = pytest.importorskip('transformers')
    torch.manual_seed(0)
    model = hf.LlamaForCausalLM(
        hf.LlamaConfig(
            hidden_size=32,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=64,
            vocab_size=50,
        )
    ).eval()
    words = torch.arange(12).view(2, 6)
    for use_cache in (True, False):
        model.config.use_cache = use_cache
        with pytest.raises(ValueError, match=r'layers\.1 has a number in a c'):
            remove_blocks(model, 'layers.1', dict(input_ids=words))
    with hooked(bypass(model.model.layers[2])):
        wanted = model(words).logits
    assert remove_blocks(model, 'layers.2', dict(input_ids=words)) == [
        'model.layers.2'
    ]
    assert torch.equal(model(words).logits, wanted)
    assert model.generate(words, max_new_tokens=3, do_sample=False).shape == (
        2,
        9,
    )
