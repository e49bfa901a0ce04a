"""``reset_parameters`` from memory that holds anything, in any order."""

import pytest
import torch

from mmstepnet import insert_steps
from mmstepnet.attentions import (
    IEBN,
    Attention,
    ZeroStart,
    build_attention,
    choose_step,
)
from mmstepnet.steps import ResidualStep
from tests.test_attentions.conftest import FIXED
from tests.utils import seeded


def spoil(module):
    """As ``to_empty`` may leave it."""
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.fill_(1e30 if tensor.is_floating_point() else 7)
    return module


def parents_first(module, turn=list):
    for child in turn(list(module.modules())):
        if hasattr(child, 'reset_parameters'):
            child.reset_parameters()


ORDERS = pytest.mark.parametrize(
    'reset',
    [
        pytest.param(lambda module: module.reset_parameters(), id='by itself'),
        pytest.param(parents_first, id='parents first'),
        pytest.param(
            lambda module: parents_first(module, reversed), id='children first'
        ),
    ],
)


@ORDERS
@pytest.mark.parametrize('init_step', [None, 1.0])
def test_every_attention(cfg, init_step, reset):
    """The same start, but for what is drawn."""

    def build():
        return build_attention(dict(cfg, init_step=init_step), 32, 7)

    fresh, model = build(), spoil(build())
    reset(model)
    for key, value in fresh.named_parameters():
        found = model.get_parameter(key)
        if value.unique().numel() == 1:
            assert torch.equal(found, value), key
        else:
            assert found.std() > 0 and found.abs().max() < 1, key
    for key, value in fresh.named_buffers():
        assert torch.equal(model.get_buffer(key), value), key
    for mode in (True, False):
        out = choose_step(model.train(mode), *seeded(2, 4, 32, 7, 7))
        assert out.isfinite().all()
        assert init_step is None or (out == init_step).all()


@ORDERS
def test_a_constant_without_parameters(reset):
    """Its value is a buffer: from any memory, also that of ``to_empty``."""
    step = ResidualStep(build_attention(dict(FIXED, init_step=0.5), 8))
    wanted = torch.full((8,), 0.5)
    step.to('meta')
    assert torch.equal(step.to_empty(device='cpu').attention.weight, wanted)
    reset(spoil(step.attention))
    assert torch.equal(step.attention.weight, wanted)
    average = torch.optim.swa_utils.AveragedModel(step, use_buffers=True)
    average.update_parameters(step)
    assert torch.equal(average.module.attention.weight, wanted)


@ORDERS
def test_norms(reset):
    norm = spoil(IEBN(8, init_step=1.0))
    reset(norm)
    x = torch.randn(4, 8, 3, 3)
    torch.testing.assert_close(norm(x), torch.nn.BatchNorm2d(8)(x))


@pytest.mark.parametrize('name', ['StepNet', 'FCA', 'SE'])
def test_from_pretrained(name, tmp_path):
    """A user's class: from a plain checkpoint, and from one of its own."""
    transformers = pytest.importorskip('transformers', '5')

    class SteppedModel(transformers.ResNetModel):
        def __init__(self, config):
            super().__init__(config)
            insert_steps(
                self,
                name,
                init_step=config.init_step,
                **dict(map_size=8) if name == 'FCA' else {},
            )
            self.post_init()

        def _init_weights(self, module):
            super()._init_weights(module)
            if isinstance(module, (Attention, ZeroStart)):
                module.reset_parameters()

    class Stepped(transformers.ResNetForImageClassification):
        _keys_to_ignore_on_load_missing = [r'_extra_state$']

        def __init__(self, config):
            super().__init__(config)
            self.resnet = SteppedModel(config)
            self.post_init()

    config = transformers.ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 16],
        depths=[2, 2],
        layer_type='basic',
        num_labels=3,
        init_step=1.0,
    )
    x = torch.randn(2, 3, 32, 32)
    model = transformers.ResNetForImageClassification(config).eval()
    for folder in ('plain', 'own'):
        expected = model(x).logits
        model.save_pretrained(tmp_path / folder)
        model = Stepped.from_pretrained(tmp_path / folder).eval()
        torch.testing.assert_close(model(x).logits, expected)
        with torch.no_grad():
            for key, value in model.named_parameters():
                if 'step' in key:
                    value.add_(torch.rand_like(value))
