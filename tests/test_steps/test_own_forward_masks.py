"""Steps in a forward of its own: masks, refusals, tools."""

import copy
import logging
import pickle

import pytest
import torch
import torch.nn as nn

from mmstepnet import (
    TrajectoryRecorder,
    find_steps,
    fold,
    insert_steps,
    remove_steps,
)
from mmstepnet.attentions import choose_step
from mmstepnet.blocks import StepDescription, register_block
from mmstepnet.steps.places import find_plans
from tests.test_steps.test_own_forward import (
    MAP,
    C,
    gate,
    random,
    stack,
)
from tests.utils import TORCH_21

from . import own_forward_blocks as blocks
from .insertion import perturb, perturb_gates

LENGTHS = 5, 3, 1, 4
HIDDEN = torch.arange(5) >= torch.tensor(LENGTHS)[:, None]
SEEN = ~HIDDEN[:, None, None]


def assert_padding_is_left_out(run):
    """Each sample is what it is alone, without padding."""
    x = random(4, 5, C)
    out = run(x, True)
    for k, n in enumerate(LENGTHS):
        alone = run(x[k:k + 1, :n], False)
        torch.testing.assert_close(out[k:k + 1, :n], alone)


@pytest.mark.parametrize('mask', [
    SEEN, SEEN.long(), (SEEN & SEEN.mT).double(),
    torch.zeros(4, 2, 5, 5).masked_fill(~SEEN, -1e4)[:, :1].double(),
], ids=['bool', 'int', 'of pairs', 'added'])
def test_steps_do_not_pool_over_padding(mask):
    model, x = stack(blocks.Masked, (4, 5, C))
    assert_padding_is_left_out(
        lambda x, padded: model[0](x, mask if padded else None))


@pytest.mark.parametrize('added', [False, True])
@pytest.mark.parametrize('batch_first', [False, True])
def test_steps_do_not_pool_over_padding_of_pytorch(batch_first, added):
    axes = (0, 0) if batch_first else (0, 1)
    layer = nn.TransformerEncoderLayer(
        C, 2, 8, batch_first=batch_first, dtype=torch.float64)
    model = nn.TransformerEncoder(
        layer, 2, enable_nested_tensor=False).eval()
    insert_steps(model, example=random(4, 5, C).transpose(*axes),
                 layout='NLC' if batch_first else 'LNC')
    perturb_gates(model)
    mask = HIDDEN.double() * -1e30 if added else HIDDEN
    assert_padding_is_left_out(lambda x, padded: model(
        x.transpose(*axes), src_key_padding_mask=mask if padded else None
    ).transpose(*axes))


def test_a_nested_tensor_is_refused():
    layer = nn.TransformerEncoderLayer(C, 2, 8, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    x = torch.rand(4, 5, C)
    insert_steps(model, example=x)
    with torch.no_grad(), pytest.raises(ValueError, match='layers.0 is given '
                                        'a nested .*enable_nested_tensor'):
        model(x, src_key_padding_mask=HIDDEN)


def test_a_mask_that_is_not_known_is_refused():
    model, x = stack(blocks.Masked, (4, 5, C))
    with pytest.raises(ValueError, match=r'0 is given attention_mask \(1, 5\)'
                       '.*Give batches without padding'):
        model[0](x, attention_mask=~HIDDEN[1:2])
    with pytest.raises(RuntimeError, match='attention_mask has other numbers'):
        model[0](x, attention_mask=2. * SEEN)

    class Model(nn.Sequential):

        def forward(self, x, mask):
            return self[1](self[0](x, mask), mask)

    model = Model(blocks.Masked(), blocks.Masked()).double()
    with pytest.raises(ValueError, match='0 is given attention_mask'):
        insert_steps(model, example=(x, ~HIDDEN[1:2]))


@pytest.mark.skipif(TORCH_21, reason='Dynamo follows no function mode')
def test_a_mask_of_a_compiled_block():
    model, x = stack(blocks.Masked, (4, 5, C))
    torch._dynamo.reset()
    compiled = torch.compile(model[0], backend='aot_eager')
    for mask in (SEEN, torch.ones_like(SEEN)):
        torch.testing.assert_close(compiled(x, mask), model[0](x, mask))


@pytest.mark.parametrize('device', ['cpu', 'meta'])
def test_a_decoder_is_refused(device):
    with torch.device(device):
        model = nn.Sequential(*(blocks.Causal() for _ in range(3)))
        others = nn.Sequential(*(blocks.Encoder() for _ in range(3)))
    names = insert_steps(others, example=torch.rand(2, 5, C))
    assert names == ['0', '1', '2']
    assert all(p.device.type == device for p in others.parameters())
    before = dict(model.named_modules())
    with pytest.raises(ValueError, match='0 .Causal. is a decoder'):
        insert_steps(model, example=torch.rand(2, 5, C))
    assert dict(model.named_modules()) == before


def test_a_shared_block_is_refused(caplog):
    block = blocks.Conv()
    model = nn.Sequential(block, blocks.Conv(), block)
    example = torch.rand(2, *MAP[1:])
    with pytest.raises(ValueError, match='0 runs several times'):
        insert_steps(model, blocks='0', example=example)
    assert insert_steps(model, example=example) == ['1']
    assert 'Blocks without steps: 0 runs several times' in caplog.text


def test_another_forward_is_found_by_running(caplog):

    class Described(blocks.Conv):

        def forward(self, x):
            return x + self.conv(x)

    register_block(Described, StepDescription(
        lambda block, x: block.conv(x), width='conv'))

    class Changed(Described):

        def forward(self, x):
            return (x + self.conv(x)).tanh()

    with caplog.at_level(logging.INFO):
        model, x = stack(Changed)
    assert '0 is found by running' in caplog.text
    wanted = x
    for block in model:
        f = block.conv(wanted)
        wanted = (wanted + f * gate(block.step, wanted, f)).tanh()
    torch.testing.assert_close(model(x), wanted, rtol=1e-12, atol=1e-12)


def test_nothing_to_find():
    model = nn.Sequential(nn.Conv2d(3, 3, 1))
    with pytest.raises(ValueError, match='give example='):
        insert_steps(model)
    with pytest.raises(ValueError, match='adds no two tensors'):
        insert_steps(model, example=torch.rand(1, 3, 8, 8))


def test_the_model_is_left_as_it_was_by_the_search():
    model = perturb(nn.Sequential(*(blocks.Conv() for _ in range(3))))
    model.append(nn.BatchNorm2d(C))
    twin = copy.deepcopy(model)
    state = torch.get_rng_state()
    example = torch.zeros(1, *MAP[1:])
    plans, *_ = find_plans(model, example)
    assert list(plans) == ['0', '1', '2']
    assert torch.equal(torch.get_rng_state(), state)
    insert_steps(model, example=example)
    remove_steps(model)
    assert model.training and [type(m) for m in model.modules()] == [
        type(m) for m in twin.modules()]
    for (k, p), (_, q) in zip(model.state_dict().items(),
                              twin.state_dict().items()):
        assert torch.equal(p, q), k


@pytest.mark.parametrize('make, shape', [
    (blocks.Conv, MAP), (blocks.Encoder, (4, 5, C)),
    (blocks.Parallel, (4, 5, C))])
def test_copies_compilers_and_tools(make, shape):
    model, x = stack(make, shape)
    with torch.no_grad():
        wanted = model(x)
        for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)),
                     fold(model)):
            torch.testing.assert_close(twin(x), wanted)
        with TrajectoryRecorder(model) as recorder:
            torch.testing.assert_close(model(x), wanted)
    plain = copy.deepcopy(model)
    remove_steps(plain)
    assert recorder.blocks == [
        s.name for s in find_steps(plain, x) if s.left_out is None]
    with pytest.raises(RuntimeError, match='steps were taken'):
        torch.fx.symbolic_trace(model)
    if TORCH_21:
        pytest.skip("PyTorch 2.1's Dynamo follows no function mode")
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend='eager')
    exported = torch.export.export(model, (x, )).module()
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), wanted)
        torch.testing.assert_close(exported(x), wanted)


def test_other_gates():
    model, x = stack(blocks.Conv, attention='SE', reduction=2)
    wanted = x
    for block in model:
        f = block.conv(wanted)
        dt = choose_step(block.step.attention, wanted, f)
        wanted = (wanted + f * dt).relu()
    torch.testing.assert_close(model(x), wanted)
    tokens = nn.Sequential(*(blocks.Encoder() for _ in range(3)))
    with pytest.raises(ValueError, match='looks at positions'):
        insert_steps(tokens, 'CBAM', example=torch.rand(2, 5, C), reduction=2)
