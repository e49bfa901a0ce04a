"""Stochastic depth; and blocks that a step would be wrong in are refused."""

import copy
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch
import torch.nn as nn

from mmstepnet import insert_steps, remove_steps
from tests.utils import TORCH_21

from . import own_forward_blocks as blocks
from .test_own_forward import C, gate, random, stack

MAP = (4, C, 5, 6)


class Twice(blocks.Conv):
    """Adds two branches of one state, and ``between`` to the first sum."""

    between = staticmethod(lambda y: y)

    def __init__(self):
        super().__init__()
        self.second = nn.Conv2d(C, C, 1)

    def forward(self, x):
        return type(self).between(x + self.conv(x)) + self.second(x)


class Weighted(Twice):

    def forward(self, x):
        return torch.add(self.second(x), x + self.conv(x), alpha=0.5)


@pytest.mark.parametrize('between', [
    lambda y: y * 0.5, lambda y: y.mul_(0.5),
    lambda y: y.index_fill_(1, torch.zeros((), dtype=torch.int64,
                                           device=y.device), 0)])
def test_a_sum_that_is_changed_before_the_next_branch(between):
    kind = type('Block', (Twice, ), dict(between=staticmethod(between)))
    with pytest.raises(ValueError, match='0 adds several branches'):
        stack(kind, MAP)


def test_a_sum_with_a_factor_of_its_own():
    with pytest.raises(ValueError, match='0 adds several branches'):
        stack(Weighted, MAP)
    model, _ = stack(Twice, MAP)
    assert model[0]._plans[0].places[0].ordinals == (0, 1)


@pytest.mark.parametrize('add', [
    lambda x, f: torch.add(f, x, out=torch.empty_like(x)),
    lambda x, f: torch.add(f, x, out=f)])
def test_a_sum_that_is_written_elsewhere(add):
    kind = type('Block', (blocks.Conv, ), dict(add=staticmethod(add)))
    with torch.no_grad(), pytest.raises(ValueError, match='no function of'):
        stack(kind, MAP)


@pytest.mark.parametrize('layer, order, length', [
    (lambda: nn.Conv1d(C, C, 1), (0, 2, 1), C),
    (lambda: nn.Linear(C, C), (0, 2, 1), C),
    (lambda: nn.Conv2d(C, C, 1), (0, 3, 1, 2), C)])
def test_as_many_places_as_channels(layer, order, length):
    """A layer that is given the transposed state tells another axis."""

    class Turned(nn.Module):

        def __init__(self):
            super().__init__()
            self.layer = layer()

        def forward(self, x):
            back = sorted(range(len(order)), key=order.__getitem__)
            return x + self.layer(x.permute(order)).permute(back)

    shape = (4, *[length] * (len(order) - 1))
    with pytest.raises(ValueError, match='axis of channels is not clear'):
        stack(Turned, shape)


@pytest.mark.parametrize('make, shape, axis', [
    (blocks.Conv, (4, C, C, C), 1), (blocks.LastChannels, (4, C, C, C), 3),
    (blocks.Encoder, (4, C, C), 2)])
def test_as_many_places_as_channels_of_a_layer(make, shape, axis):
    model, _ = stack(make, shape)
    assert model[0]._plans[0].places[0].channels == axis


def test_tokens_before_samples():
    layer = nn.TransformerEncoderLayer(C, 2, 16)
    model = nn.TransformerEncoder(layer, 3)
    with pytest.raises(ValueError, match='takes the tokens first.*layout='):
        insert_steps(model, example=torch.rand(5, 4, C))
    insert_steps(model, example=torch.rand(5, 4, C), layout='LNC')
    assert model.layers[0]._plans[0].places[0].batch == 1


def test_an_example_whose_samples_cannot_be_changed():

    class Listed(nn.Sequential):

        def forward(self, samples):
            return super().forward(torch.stack(samples, 1))

    model = Listed(*(blocks.LastChannels() for _ in range(3)))
    example = ([torch.rand(5, C), torch.rand(5, C)], )
    with pytest.raises(ValueError, match='axis of samples is not clear'):
        insert_steps(model, example=example)


class Either(blocks.Encoder):
    """A Transformer's block whose argument says whether it is a decoder's."""

    def __init__(self, causal):
        super().__init__()
        self.kind = blocks.Causal if causal else blocks.Encoder

    def attend(self, x):
        return self.kind.attend(self, x)


class SecondArgument(blocks.Causal):

    def forward(self, position, x):
        return super().forward(x)


class Positions(nn.Sequential):

    def forward(self, x):
        for block in self:
            x = block(x[0, 0], x)
        return x


def test_decoders_that_are_hard_to_find():
    model = nn.Sequential(*(Either(k > 1) for k in range(4)))
    with pytest.raises(ValueError, match='2 .Either. is a decoder'):
        insert_steps(model, example=torch.rand(2, 5, C))
    with pytest.raises(ValueError, match='0 .* a state of one token'):
        insert_steps(model, example=torch.rand(2, 1, C))
    model = Positions(*(SecondArgument() for _ in range(3)))
    with pytest.raises(ValueError, match='0 .SecondArgument. is a decoder'):
        insert_steps(model, example=torch.rand(2, 5, C))


class InPlace(blocks.Encoder):
    """The first way can be trained."""

    way = ''

    def forward(self, x):
        if self.way == 'f += x':
            x *= 1
            y = self.attend(self.ln1(x))
            y += x
            z = self.mlp(self.ln2(y))
            z += y
            return z
        x += self.attend(self.ln1(x))
        x += self.mlp(self.ln2(x))
        return x


def test_tokens_that_are_overwritten(monkeypatch):
    model = nn.Sequential(InPlace(), InPlace())
    with pytest.raises(ValueError, match='0 .InPlace.: it cannot be told .* '
                       'PyTorch cannot train it .* inplace operation.; leave'):
        insert_steps(model, example=torch.rand(2, 5, C))
    monkeypatch.setattr(InPlace, 'way', 'f += x')
    assert insert_steps(model, example=torch.rand(2, 5, C)) == ['0', '1']


@pytest.mark.parametrize('part', ['step', 'host', '_plans'])
def test_a_name_that_is_taken(part):
    model = nn.Sequential(*(blocks.Conv() for _ in range(3)))
    setattr(model[2], part, nn.Linear(1, 1))
    before = dict(model.named_modules())
    types = [type(m) for m in model.modules()]
    with pytest.raises(ValueError, match=f'2 .Conv. has an attribute {part}'):
        insert_steps(model, example=torch.rand(1, C, 6, 6))
    assert dict(model.named_modules()) == before
    assert [type(m) for m in model.modules()] == types


def test_what_modules_keep_in_containers_is_left_alone():

    class Caching(nn.Sequential):

        def __init__(self, *parts):
            super().__init__(*parts)
            self.cache, self.log = {'kept': 1}, [0]

        def forward(self, x):
            if x.shape[2] not in self.cache:
                self.cache[x.shape[2]] = x.new_ones(x.shape[2:])
            self.log.append(x.sum())
            return super().forward(x * self.cache[x.shape[2]])

    model = Caching(*(blocks.Conv() for _ in range(3)))
    twin, x = copy.deepcopy(model), random(*MAP).float()
    insert_steps(model, example=x)
    assert (model.cache, model.log) == ({'kept': 1}, [0])
    torch.testing.assert_close(model(x), twin(x))
    remove_steps(model)


def test_a_sum_keeps_the_dtype_that_it_is_written_in():

    class Half(blocks.Conv):

        def forward(self, x):
            x = x * 1
            x += self.conv(x.float())
            return x

    model = nn.Sequential(*(Half() for _ in range(3)))
    x = random(*MAP).half()
    insert_steps(model, example=x)
    assert model(x).dtype == torch.float16


@pytest.mark.parametrize('style', ['timm', 'mmcv', 'in place'])
def test_the_gate_sees_the_branch_before_stochastic_depth(style):
    kind = type('Block', (blocks.Dropping, ), dict(style=style))
    model, x = stack(kind)
    block = model[1].train()
    block.step.attention.eval()
    f = block.conv(x) * 0.5
    wanted = f * gate(block.step, x, f)
    torch.manual_seed(0)
    noise = torch.empty(len(x), 1, 1, 1, dtype=x.dtype).bernoulli_(0.5)
    assert noise.unique().numel() == 2
    torch.manual_seed(0)
    torch.testing.assert_close(block(x), x + wanted * noise / 0.5)
    if TORCH_21:
        pytest.skip("PyTorch 2.1's Dynamo follows no function mode")
    torch._dynamo.reset()
    compiled = torch.compile(block, fullgraph=True, backend='eager')
    torch.manual_seed(0)
    torch.testing.assert_close(compiled(x), x + wanted * noise / 0.5)


def test_threads_draw_their_own_stochastic_depth():
    """Two threads are in one block at a time, with batches of their own."""
    model, x = stack(blocks.Dropping)
    block = model[1].train()
    block.step.attention.eval()
    both = Barrier(2, timeout=60)
    drawn = {}

    def drop(f):
        noise = (torch.arange(len(f)) % 2 == 0).to(f).view(-1, 1, 1, 1)
        drawn[len(f)] = noise if len(f) == 4 else 1 - noise
        return f * drawn[len(f)]

    def wait(*_):  # both have drawn before either applies it
        both.wait()

    block.drop = drop
    waiting = block.step.register_forward_pre_hook(wait)
    with ThreadPoolExecutor(2) as pool:
        outs = list(pool.map(block, (x, x[:2])))
    waiting.remove()
    for out, given in zip(outs, (x, x[:2])):
        f = block.conv(given) * 0.5
        wanted = given + f * gate(block.step, given, f) * drawn[len(given)]
        torch.testing.assert_close(out, wanted)
