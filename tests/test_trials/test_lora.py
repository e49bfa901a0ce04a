"""LoRA as a rung."""

import pytest
import torch

from mmstepnet.trials.pictures import decode
from mmstepnet.trials.trial import Recipe, Trial
from tests.test_trials.tiny_network import net, pictures

peft = pytest.importorskip('peft', reason='needs the stack of the examples')

CONVOLUTIONS = [f'layer1.{k}.conv{n}' for k in (0, 1) for n in (1, 2)]


def lora(model):
    config = peft.LoraConfig(r=1, target_modules=CONVOLUTIONS)
    peft.inject_adapter_in_model(config, model)
    return [p for name, p in model.named_parameters() if 'lora_' in name]


def test_lora_is_a_line():
    """Its two factors of each weight are trained, and the weight is not."""
    model, _ = net()
    trial = Trial(model, *decode(pictures()), 8)
    trained = trial.train(lora, torch.arange(30), Recipe())
    for name in CONVOLUTIONS:
        before = model.get_submodule(name).weight
        layer = trained.get_submodule(name)
        assert torch.equal(layer.base_layer.weight, before)
        first = layer.lora_A['default'].weight
        second = layer.lora_B['default'].weight
        assert first.shape == (1, 8, 3, 3) and second.shape == (8, 1, 1, 1)
        assert second.any(), 'it starts at 0'
    factors = 4 * (first.numel() + second.numel())
    head = sum(p.numel() for p in trained.fc.parameters())
    assert trial.measure(lora)['trained'] == factors + head
