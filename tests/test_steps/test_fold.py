"""Folded gates against the network they were folded from."""

import pytest
import torch
import torch.nn as nn
from torchvision.models import VisionTransformer, resnet18

import mmstepnet
from mmstepnet.attentions import FoldedStepNet, StepNet
from tests.test_steps.insertion import with_moved_steps
from tests.utils import rounding, same, seeded

IMAGES = seeded(2, 3, 32, 32).double()


def resnet(**options):
    return with_moved_steps(resnet18(num_classes=3), **options).eval()


MODELS = {
    'ResNet': (resnet, 5),
    'ViT': (lambda: with_moved_steps(VisionTransformer(
        32, 8, 2, 4, 32, 64, num_classes=3)).eval(), 4),
    'SE': (lambda: resnet(attention='SE'), 0),
    'no norm': (lambda: resnet(attention='OursNoNorm'), 5),
    'paper': (lambda: resnet(init_step=None), 5),
    **{inputs: (lambda inputs=inputs: resnet(inputs=inputs), 5)
       for inputs in ('x', 'x_next', 'difference')},
}


def count(model, *types):
    return sum(isinstance(module, types) for module in model.modules())


@pytest.mark.parametrize('name', MODELS)
def test_gates_are_folded_and_nothing_else(name):
    """In float32 the folded network rounds as the network does."""
    build, folded_gates = MODELS[name]
    model = build().double()
    folded = mmstepnet.fold(model.train())
    assert model.training and not folded.training
    assert count(folded, FoldedStepNet) == folded_gates
    assert count(model, FoldedStepNet) == 0
    for kind in (nn.Conv2d, nn.BatchNorm2d, nn.LayerNorm, nn.Linear):
        assert count(folded, kind) == count(model, kind)
    with torch.no_grad():
        exact, out = model.eval()(IMAGES), folded(IMAGES)
        same(out, exact)
        assert torch.equal(mmstepnet.fold(folded)(IMAGES), out)
        single = model.float()(IMAGES.float())
        out = mmstepnet.fold(model)(IMAGES.float())
        assert rounding(out, exact) <= 2 * rounding(single, exact)


def test_other_adaptors_stay():
    """A subclass may compute anything, and statistics may be missing."""
    class Twice(StepNet):
        def forward(self, *means):
            return super().forward(*means).clamp(max=0.5) * 2

    def no_statistics(block):
        bn = block.step.attention.bn
        bn.running_mean = bn.running_var = None

    for change in (lambda block: setattr(
            block.step, 'attention', Twice(block.step.attention.channels)),
            no_statistics):
        model = resnet()
        for stage in (model.layer1, model.layer4):
            change(stage[1].eval())
        model.double().eval()
        folded = mmstepnet.fold(model)
        assert count(folded, FoldedStepNet) == count(model, StepNet) - 2
        same(folded(IMAGES), model(IMAGES))


def test_a_folded_gate_starts_from_any_memory():
    """As StepNet does, whose start is one number for all images."""
    gate, pooled = StepNet(3), torch.rand(2, 5, 3)
    folded = FoldedStepNet(gate.eval())
    for p in folded.parameters():
        nn.init.constant_(p, torch.nan)
    folded.reset_parameters()
    with torch.no_grad():
        assert torch.equal(folded(*pooled), gate(*pooled))


def test_refuses_models_without_steps():
    with pytest.raises(TypeError, match='with residual steps.*got Conv2d'):
        mmstepnet.fold(nn.Conv2d(3, 3, 1))
