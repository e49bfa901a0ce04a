"""Folded gates against the network they were folded from."""

import pytest
import torch
import torch.nn as nn
from torch.nn.utils.parametrizations import weight_norm
from torchvision.models import ConvNeXt, VisionTransformer, resnet18
from torchvision.models.convnext import CNBlockConfig

import mmstepnet
from mmstepnet.attentions import FoldedStepNet, StepNet
from tests.test_steps.insertion import difference
from tests.utils import (
    Adds,
    outputs,
    perturb,
    rounding,
    same,
    seeded,
    steps_of,
    with_moved_steps,
)

IMAGES = seeded(2, 3, 32, 32).double()


def resnet(**options):
    return with_moved_steps(resnet18(num_classes=3), **options).eval()


MODELS = {
    'ResNet': (resnet, 5),
    'ViT': (
        lambda: with_moved_steps(
            VisionTransformer(32, 8, 2, 4, 32, 64, num_classes=3)
        ).eval(),
        4,
    ),
    'SE': (lambda: resnet(attention='SE'), 0),
    'no norm': (lambda: resnet(attention='OursNoNorm'), 5),
    'paper': (lambda: resnet(init_step=None), 5),
    **{
        inputs: (lambda inputs=inputs: resnet(inputs=inputs), 5)
        for inputs in ('x', 'x_next', 'difference')
    },
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

    for change in (
        lambda block: setattr(
            block.step, 'attention', Twice(block.step.attention.channels)
        ),
        no_statistics,
    ):
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


def step_resnet(**options):
    pytest.importorskip('mmpretrain')
    from mmstepnet import models

    return perturb(
        models.StepResNetCIFAR(
            20,
            attention=dict(type='LayerScale', init_step=None, learned=False),
            **options,
        )
    )


def step_vit():
    pytest.importorskip('mmpretrain')
    from mmstepnet import models

    return perturb(
        models.StepVisionTransformer(
            dict(
                embed_dims=16,
                num_layers=2,
                num_heads=2,
                feedforward_channels=32,
            ),
            img_size=32,
            patch_size=8,
            attention=dict(type='LayerScale'),
        )
    )


def vit():
    return VisionTransformer(32, 8, 2, 4, 32, 64, num_classes=3)


def convnext():
    return ConvNeXt([CNBlockConfig(16, None, 2)], num_classes=3)


def timms_vit():
    return pytest.importorskip(
        'timm.models.vision_transformer'
    ).VisionTransformer(
        32, 8, num_classes=3, embed_dim=24, depth=2, num_heads=2
    )


def timms_mobilenet():
    return pytest.importorskip('timm').create_model(
        'mobilenetv3_small_050', num_classes=3
    )


def se_resnet():
    models = pytest.importorskip('timm.models.resnet')
    return models.ResNet(
        models.BasicBlock,
        [1] * 4,
        num_classes=3,
        channels=[8] * 4,
        block_args=dict(attn_layer='se'),
    )


def with_constants(build):
    return lambda: with_moved_steps(build(), attention='LayerScale')


CONSTANTS = {
    'BN of a ResNet': (with_constants(resnet18), 8, 0),
    'one number, not learned': (
        lambda: resnet(attention='LayerScale', shared=True, learned=False),
        8,
        0,
    ),
    'BN of StepResNet': (step_resnet, 9, 0),
    'convolution': (lambda: step_resnet(preact=True), 9, 0),
    'linear, but for multi-head attention': (with_constants(vit), 4, 2),
    'linear': (with_constants(timms_vit), 4, 0),
    'linear, seen as maps': (step_vit, 2, 0),
    'BN of timm': (with_constants(timms_mobilenet), 7, 0),
    'behind an SE': (with_constants(se_resnet), 4, 4),
    'behind a constant of its own': (with_constants(convnext), 2, 2),
}
"""Networks, how many constants they have, and how many when folded."""


def constants(model):
    return [
        step.attention
        for step in steps_of(model).values()
        if step.attention is not None
    ]


@pytest.mark.parametrize('name', CONSTANTS)
def test_constants_go_into_the_layers_before_them(name):
    build, before, after = CONSTANTS[name]
    model = build().eval()
    size = getattr(model, 'pretrained_cfg', {}).get('input_size', (3, 32, 32))
    x = torch.rand(1, *size).double()
    folded = mmstepnet.fold(model.double())
    assert len(constants(model)) == before
    assert len(constants(folded)) == after
    exact = outputs(model, x)
    assert difference(outputs(folded, x), exact) <= 1e-10
    single = outputs(model.float(), x.float())
    mmstepnet.mark_only_steps_as_trainable(model)  # norms of other classes
    folded = mmstepnet.fold(model)
    assert len(constants(folded)) == after
    out = outputs(folded, x.float())
    assert difference(out, exact) <= 2 * difference(single, exact) + 1e-6


class Ends(Adds):
    """A branch that ends in a module which does nothing."""

    def __init__(self, *layers):
        super().__init__(nn.Sequential(*layers))
        self.end = nn.Identity()

    def forward(self, x):
        return x + self.end(self.f(x))


class Looks(Ends):
    """It looks at its branch before."""

    def forward(self, x):
        f = self.f(x)
        self.size = f.abs().mean()
        return x + self.end(f)


class Shows(Ends):
    """It returns its branch, too."""

    def forward(self, x):
        f = self.f(x)
        return x + self.end(f), f


class Weighs(Ends):
    """It computes with the weights of its branch."""

    def forward(self, x):
        x = x * self.f[0].weight.abs().mean()
        return x + self.end(self.f(x))


class Last(nn.Sequential):
    """Two blocks, of which the second may return a tuple."""

    def forward(self, x):
        return self[1](self[0](x))


TOKENS = torch.rand(2, 6, 8, generator=torch.Generator().manual_seed(0))


def chain(block=Ends, *others):
    """Two blocks of nobody's, with constant steps, of which one may differ."""
    model = Last(Ends(nn.Linear(8, 8)), block(nn.Linear(8, 8), *others))
    return with_moved_steps(
        model, attention='LayerScale', example=TOKENS
    ).eval()


def changed(change):
    """A chain with a change of its second layer."""

    def build():
        model = chain()
        change(model, model[1].f[0])
        return model

    return build


STAYS = {
    'others read it': lambda: chain(Looks),
    'others get it': lambda: chain(Shows),
    'others read its weights': lambda: chain(Weighs),
    'not linear': lambda: chain(Ends, nn.ReLU()),
    'no weights': lambda: chain(
        Ends, nn.LayerNorm(8, elementwise_affine=False)
    ),
    'a class of its own': lambda: chain(
        Ends, type('Linear', (nn.Linear,), {})(8, 8)
    ),
    'hooked': changed(
        lambda model, layer: layer.register_forward_hook(lambda *args: None)
    ),
    'another forward': changed(
        lambda model, layer: setattr(layer, 'forward', layer.forward)
    ),
    'parametrised': changed(lambda model, layer: weight_norm(layer)),
    'a shared weight': changed(
        lambda model, layer: (
            setattr(model, 'twin', nn.Linear(8, 8))
            or setattr(model.twin, 'weight', layer.weight)
        )
    ),
    'a shared layer': changed(
        lambda model, layer: setattr(model, 'twin', layer)
    ),
    'a hooked step': changed(
        lambda model, layer: steps_of(model)[
            '1.step'
        ].attention.register_forward_hook(lambda *args: None)
    ),
}


@pytest.mark.parametrize('name', ['nothing', *STAYS])
def test_constants_stay_where_it_is_not_certain(name):
    model = STAYS.get(name, chain)()
    folded = mmstepnet.fold(model, TOKENS)
    assert list(steps_of(folded)) == ['1.step'] * (name != 'nothing')
    assert difference(outputs(folded, TOKENS), outputs(model, TOKENS)) <= 1e-6


def test_layer_norm_takes_a_constant():
    folded = mmstepnet.fold(chain(Ends, nn.LayerNorm(8)), TOKENS)
    assert not steps_of(folded)


def test_what_is_gone_leaves_the_hosts_network():
    """Its keys and classes; a constant in a network that must run is told."""
    model, plain = chain(), Last(*(Ends(nn.Linear(8, 8)) for _ in 'ab'))
    folded = mmstepnet.fold(model, TOKENS)
    assert folded.state_dict().keys() == plain.state_dict().keys()
    assert [type(m) for m in folded.modules()] == [
        type(m) for m in plain.modules()
    ]
    with pytest.raises(ValueError, match='give example='):
        mmstepnet.fold(model)


@pytest.mark.skipif(
    torch.__version__ < '2.2', reason='needs a later Dynamo than that of 2.1'
)
def test_one_of_two_steps_is_compiled():
    """Its block does not run code that was compiled for two, or for one."""
    model = with_constants(vit)().double().eval()
    for network in (model, mmstepnet.fold(model)):
        for layer in network.encoder.layers:
            layer.compile(backend='eager')
        with torch.no_grad():
            same(network(IMAGES), model(IMAGES))
