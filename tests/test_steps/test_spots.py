"""Where steps stand, and which blocks take none."""

from collections import namedtuple

import pytest
import torch
import torch.nn as nn
from torch.ao.quantization import quantize_dynamic

from mmstepnet import insert_steps
from mmstepnet.stiffness import TrajectoryRecorder
from tests.utils import Adds, same, steps_of


class Block(nn.Module):
    """Linear layers on tokens, (N, L, 8)."""

    def __init__(self, forward):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.fn = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
        self.drop = nn.Dropout(0.1)
        self.gamma = nn.Parameter(torch.full((8,), 0.5))
        self.gate = nn.Linear(8, 8)
        self.run = forward

    def forward(self, *args):
        return self.run(self, *args)


class Embedded(nn.Module):
    """Blocks behind an embedding of integers."""

    def __init__(self, forward):
        super().__init__()
        self.table = nn.Embedding(10, 8)
        self.blocks = nn.ModuleList(Block(forward) for _ in range(3))

    def forward(self, x, *extra):
        """Beside pictures stand labels or a mask of padding."""
        x = x if extra else self.table(x)
        extra = [t if t.dim() > 1 else self.table(t)[:, None] for t in extra]
        for block in self.blocks:
            x = block(x, *extra)
        return x


class Turned(Embedded):
    """As XLNet, whose tokens lie before the samples."""

    def forward(self, x):
        return super().forward(x.T)


class Projected(Embedded):
    """As ELECTRA, whose embeddings are narrower than its states."""

    def __init__(self, forward):
        super().__init__(forward)
        self.table = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 8))


def plain(b, x):
    return x + b.fn(b.norm(x))


@pytest.mark.parametrize(
    'forward, state, branch',
    [
        pytest.param(plain, 'norm', ('fn', True), id='plain'),
        pytest.param(
            lambda b, x: x + b.drop(b.fn(b.drop(x))),
            'drop',
            ('drop', False),
            id='dropouts',
        ),
        pytest.param(
            lambda b, x: x + b.gamma * b.fn(x),
            'fn',
            ('fn', True),
            id='layer scale',
        ),
        pytest.param(
            lambda b, x: x + b.drop(input=b.gamma * b.fn(x)),
            'fn',
            ('drop', False),
            id='layer scale, named input',
        ),
        pytest.param(
            lambda b, x: x + 0.2 * b.fn[2](b.fn[0](x)),
            '',
            ('fn.2', True),
            id='a part of a container',
        ),
        pytest.param(
            lambda b, x: b.fn(x.sin()) + x,
            '',
            ('fn', True),
            id='computed input',
        ),
        pytest.param(
            lambda b, x: x.add_(b.drop(b.fn(x.clone()))),
            '',
            ('drop', False),
            id='in place',
        ),
    ],
)
def test_spots(forward, state, branch):
    """The branch outside of children with weights, the state likewise."""
    model = nn.Sequential(*(Block(forward) for _ in range(3)))
    model.double().eval()
    x = torch.randn(2, 5, 8).double()
    branches = model[1](x.clone()) - x
    insert_steps(model, example=x, init_step=None)
    place = model[1].step.place
    assert (place.state.module, place.branch[:2]) == (state, branch)
    assert (place.dims, place.batch, place.channels) == (3, 0, 2)
    same(
        model[1](x.clone()),
        x + branches * torch.tensor(-1.0).double().sigmoid(),
    )


@pytest.mark.parametrize(
    'forward, why',
    [
        pytest.param(
            lambda b, x: x + b.fn(x) + b.gate(x),
            'several branches',
            id='two branches',
        ),
        pytest.param(
            lambda b, x: x + b.fn(x) @ b.gate.weight,
            'none of its modules returns',
            id='a product',
        ),
        pytest.param(
            lambda b, x: x + b.fn(x) * b.gate(x).mean(1, True).sigmoid(),
            'none of its modules returns',
            id='a gate',
        ),  # f behind a gate of the host's
        pytest.param(
            lambda b, x: b.gate(x) + b.fn(x),
            'projected|recorded',
            id='projected',
        ),
        pytest.param(
            lambda b, x: torch.addmm(x[0], b.fn(x)[0], b.gate.weight)[None],
            'none of its modules|recorded|axis of samples',
            id='a fused product',
        ),
    ],
)
def test_refused_by_name(forward, why):
    model = nn.Sequential(*(Block(forward) for _ in range(3)))
    with pytest.raises(ValueError, match=why):
        insert_steps(model, example=torch.randn(2, 5, 8))
    assert not steps_of(model)


def test_a_block_whose_addition_is_not_seen(caplog):
    """It is of the blocks' class and stands among them, and is named."""
    model = nn.Sequential(*(Block(plain) for _ in range(4)))
    model[2].run = lambda b, x: torch.stack([x, b.fn(x)]).sum(0)
    assert insert_steps(model, example=torch.randn(2, 5, 8)) == ['0', '1', '3']
    assert '2 shows no addition to its state' in caplog.text


class OwnNorm(nn.Module):
    """A norm that no library has."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x):
        return self.weight * x / x.norm(dim=-1, keepdim=True)


class MixesTokens(nn.Module):
    """Its weights are as long as the tokens; its norm is not."""

    def __init__(self):
        super().__init__()
        self.norm = OwnNorm()
        self.mix = nn.Linear(5, 5)
        self.end = nn.Identity()

    def forward(self, x):
        return x + self.end(self.mix(self.norm(x).mT).mT)


def test_the_norm_of_a_state_tells_its_channels():
    model = nn.Sequential(*(MixesTokens() for _ in range(3)))
    insert_steps(model, example=torch.randn(2, 5, 8))
    assert model[1].step.place.channels == 2


def test_a_sequence_would_call_the_step():
    """The step stands in the layer that adds, and the sequence runs.

    A sequence that adds by itself is refused.
    """

    class Residual(nn.Sequential):
        def forward(self, x):
            return x + super().forward(x)

    model = nn.Sequential(
        *(nn.Sequential(Block(plain), nn.LayerNorm(8)) for _ in range(3))
    )
    x = torch.randn(2, 5, 8)
    wanted = model(x)
    assert insert_steps(model, example=x) == ['0.0', '1.0', '2.0']
    assert torch.equal(model(x), wanted)
    with pytest.raises(ValueError, match='0 is a sequence'):
        insert_steps(
            nn.Sequential(*(Residual(nn.Linear(8, 8)) for _ in range(3))),
            example=x,
        )


@pytest.mark.parametrize(
    'size, layout',
    [((2, 3, 4, 5, 8), None), ((5, 2, 8), 'LNC'), ((2, 8, 8), None)],
)
def test_axis_of_samples(size, layout):
    """Two numbers of samples show it; else it must be given."""
    model = nn.Sequential(*(Block(plain) for _ in range(3)))
    insert_steps(model, example=torch.randn(size), layout=layout)
    assert model(torch.randn(size)).shape == size
    assert model[0].step.place.batch == (layout == 'LNC')


def test_layers_that_take_samples_second():
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 2)
    x = torch.randn(5, 1, 8)
    with pytest.raises(ValueError, match='axis of samples is not clear'):
        insert_steps(model, example=x)
    assert len(insert_steps(model, example=x, layout='LNC')) == 2


def test_a_norm_of_whole_maps():
    model = nn.Sequential(
        *(
            Adds(nn.Sequential(nn.LayerNorm([8, 5, 8]), nn.Conv2d(8, 8, 1)))
            for _ in range(3)
        )
    )
    insert_steps(model, example=torch.randn(2, 8, 5, 8))
    assert model[0].step.place.channels == 1


def test_a_state_at_a_layer_that_is_quantised():
    model, x = (
        nn.Sequential(
            *(
                Block(lambda b, x: x + b.fn[2](b.gate(x).tanh()))
                for _ in range(3)
            )
        ).eval(),
        torch.randn(2, 5, 8),
    )
    wanted = quantize_dynamic(model, {nn.Linear})(x)
    insert_steps(model, example=x)
    assert torch.equal(quantize_dynamic(model, {nn.Linear})(x), wanted)


def test_a_branch_that_was_permuted():
    """As EdgeNeXt's: its layers see channels last, the block adds first."""

    def code(b, x):
        f = b.gamma * b.fn(b.norm(x.permute(0, 2, 3, 1)))
        return x + b.drop(f.permute(0, 3, 1, 2))

    model = nn.Sequential(*(Block(code) for _ in range(3)))
    insert_steps(model, example=torch.randn(2, 8, 5, 5))
    assert model[0].step.place[3:] == (4, 0, 1, 8)


WORDS = torch.arange(20).view(2, 10) % 10


def test_texts_are_measured_and_take_no_steps():
    model = Embedded(plain).eval()
    with pytest.raises(ValueError, match='tokens of a text'):
        insert_steps(model, example=WORDS)
    with TrajectoryRecorder(model) as recorder, torch.no_grad():
        model(WORDS)
    assert recorder.nsi.shape == (2, 2)


@pytest.mark.parametrize('network', [Turned, Projected])
def test_texts_that_are_changed_at_first_take_no_steps(network):
    with pytest.raises(ValueError, match='tokens of a text'):
        insert_steps(network(plain).eval(), example=WORDS)


def test_pictures_that_look_at_a_text_take_steps():
    """As in detectors of what a text names."""

    def look(b, x, words):
        return x + b.fn(b.norm(x) + words.mean(1, keepdim=True))

    class Grounded(Embedded):
        def forward(self, x, words):
            return super().forward(x, self.table(words))

    given = torch.randn(2, 12, 8), WORDS
    assert len(insert_steps(Grounded(look), example=given)) == 3


def test_integers_beside_pictures_do_no_harm():
    """Labels condition the blocks of a generative network."""

    def conditioned(b, x, condition):
        return x + b.fn(b.norm(x) * condition)

    model = Embedded(conditioned)
    given = torch.randn(2, 10, 8), torch.tensor([1, 2])
    assert len(insert_steps(model, example=given)) == 3


class Packed(nn.Module):
    """Is called with all that it needs in one object."""

    def __init__(self, model, unpack):
        super().__init__()
        self.model, self.unpack = model, unpack

    def forward(self, batch):
        return self.model(*self.unpack(batch))


Batch = namedtuple('Batch', 'x mask')

PACKED = {
    'arguments': (lambda x, mask: (x, mask), lambda model: model),
    'a dict': (
        lambda x, mask: (dict(x=x, mask=mask, name='a'),),
        lambda model: Packed(model, lambda b: (b['x'], b['mask'])),
    ),
    'a list in a dict': (
        lambda x, mask: dict(batch=[x, {'mask': mask}]),
        lambda model: Packed(model, lambda b: (b[0], b[1]['mask'])),
    ),
    'a named tuple': (
        lambda x, mask: (Batch(x, mask),),
        lambda model: Packed(model, tuple),
    ),
}


@pytest.mark.parametrize('how', PACKED)
@pytest.mark.parametrize(
    'mask, is_refused',
    [
        pytest.param(torch.ones(2, 5, dtype=torch.bool), True, id='of tokens'),
        pytest.param(torch.zeros(2, 1, 1, 5), True, id='of four axes'),
        pytest.param(torch.zeros(4, 5, 5), False, id='a bias'),
    ],
)  # a bias, the same for all samples
def test_a_mask_of_padding(mask, is_refused, how):
    pack, wrap = PACKED[how]
    model = wrap(Embedded(lambda b, x, mask: plain(b, x)))
    example = pack(torch.randn(2, 5, 8), mask)
    if is_refused:
        with pytest.raises(ValueError, match='beside padding'):
            insert_steps(model, example=example)
    else:
        assert len(insert_steps(model, example=example)) == 3


class Hands(Embedded):
    """Blocks that are given a mask in the form that one likes."""

    def __init__(self, form):
        super().__init__(lambda block, x, mask: plain(block, x))
        self.form = form

    def forward(self, x, mask):
        for block in self.blocks:
            x = block(x, self.form(mask))
        return x


@pytest.mark.parametrize(
    'form',
    [
        pytest.param(lambda mask: (None, mask), id='tuple'),
        pytest.param(lambda mask: [mask], id='list'),
        pytest.param(lambda mask: dict(of=dict(keys=mask)), id='dicts'),
        pytest.param(lambda mask: mask[..., None], id='column'),
    ],
)
def test_how_a_block_is_given_its_mask(form):
    example = torch.randn(2, 5, 8), torch.ones(2, 5, dtype=torch.bool)
    with pytest.raises(ValueError, match='beside padding'):
        insert_steps(Hands(form), example=example)


def test_patches_beside_padding_in_timm():
    naflex = pytest.importorskip('timm.models.naflexvit')
    model = naflex.NaFlexVit(
        naflex.NaFlexVitCfg(embed_dim=32, depth=2, num_heads=2, patch_size=4),
        num_classes=3,
    )
    y, x = (
        t.flatten()
        for t in torch.meshgrid(
            torch.arange(4), torch.arange(4), indexing='ij'
        )
    )
    batch = dict(
        patches=torch.rand(1, 16, 48),
        patch_coord=torch.stack((y, x), 1)[None],
        patch_valid=torch.arange(16)[None] < 12,
    )
    with pytest.raises(ValueError, match='beside padding'):
        insert_steps(model, example=(batch,))


@pytest.mark.parametrize(
    'name, config, blocks',
    [
        pytest.param('Bert', {}, 0, id='BERT'),
        pytest.param(
            'GPT2', dict(n_embd=32, n_layer=2, n_head=4), 0, id='GPT-2'
        ),
        pytest.param(
            'CLIPVision', dict(image_size=32, patch_size=8), 2, id='CLIP'
        ),
    ],
)
def test_networks_of_transformers(name, config, blocks):
    hf = pytest.importorskip('transformers')
    sizes = (
        {}
        if name == 'GPT2'
        else dict(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
        )
    )
    model = getattr(hf, f'{name}Model')(
        getattr(hf, f'{name}Config')(**sizes, **config)
    ).eval()
    if blocks:
        images = dict(pixel_values=torch.randn(2, 3, 32, 32))
        assert len(insert_steps(model, example=images)) == blocks
    else:
        with pytest.raises(ValueError, match='tokens of a text|padding'):
            insert_steps(model, example=dict(input_ids=WORDS))
