"""Hooks and forwards that somebody set on an object are called, or refused."""

import copy
import functools
import sys

import pytest
import torch
import torch.nn as nn
from torchvision.models import mobilenetv2, regnet
from torchvision.models.resnet import BasicBlock, ResNet

from mmstepnet import fold, insert_steps
from mmstepnet.attentions import FoldedStepNet

from .insertion import perturb, with_moved_steps

X = torch.rand(2, 3, 32, 32).double()


def moved(model):
    """With steps whose gates have moved, in float64."""
    return with_moved_steps(model).double().eval()


def resnet():
    return moved(ResNet(BasicBlock, [2, 2, 1, 1], num_classes=5))


PARTS = dict(
    block='layer1.1', convolution='layer1.1.conv1', norm='layer1.1.bn2',
    first_norm='layer1.1.bn1', activation='layer1.1.relu',
    step='layer1.1.step', gate='layer1.1.step.attention',
    gate_bn='layer1.1.step.attention.bn')


def twice(module, args, out):
    return 2 * out


@pytest.mark.parametrize('part', PARTS.values(), ids=PARTS)
def test_fold_calls_hooks(part):
    model = resnet()
    plain = model(X)
    model.get_submodule(part).register_forward_hook(twice)
    wanted = model(X)
    assert (wanted - plain).abs().max() > 1e-3
    folded = fold(model)
    torch.testing.assert_close(folded(X), wanted)
    assert sum(isinstance(m, FoldedStepNet) for m in folded.modules()) == (
        2 if 'attention' in part else 3)


@pytest.mark.parametrize('part', PARTS.values(), ids=PARTS)
@pytest.mark.parametrize('way', ['set', 'accelerate', 'mmengine'])
def test_fold_refuses_forwards_that_were_set(part, way):
    model = resnet()
    module = model.get_submodule(part)
    forward = module.forward
    if way == 'accelerate':
        hooks = pytest.importorskip('accelerate.hooks')
        hooks.add_hook_to_module(module, hooks.AlignDevicesHook('cpu'))
    elif way == 'mmengine':
        mmengine = pytest.importorskip('mmengine.runner')
        mmengine.activation_checkpointing.turn_on_activation_checkpointing(
            model, [part])
    else:
        module.forward = lambda *args: 2 * forward(*args)
    wanted, before = model(X), copy.deepcopy(model.state_dict())
    with pytest.raises(RuntimeError, match=f'{part} .*forward of its own'):
        fold(model)
    assert torch.equal(model(X), wanted)
    assert model.state_dict().keys() == before.keys()


@pytest.mark.parametrize('module', ['__main__', 'nowhere'])
def test_fold_takes_classes_that_no_file_has(module, monkeypatch):
    """As those of a notebook, or of a script that was loaded by itself."""
    monkeypatch.delattr(sys.modules['__main__'], '__file__', raising=False)
    names = dict(__name__=module, nn=nn)
    exec('class Head(nn.Module):\n'
         '    def forward(self, x):\n'
         '        return x.tanh()', names)
    model = resnet()
    model.maxpool = nn.Sequential(nn.BatchNorm2d(64), names['Head']())
    model.double().eval()
    torch.testing.assert_close(fold(model)(X), model(X))


@pytest.mark.parametrize('cls', [nn.Conv2d, nn.BatchNorm2d])
def test_fold_calls_a_patched_class(cls, monkeypatch):
    forward = cls.forward
    model = resnet()
    plain = model(X)

    @functools.wraps(forward)
    def patched(self, x):
        return 1.5 * forward(self, x)

    monkeypatch.setattr(cls, 'forward', patched)
    wanted = model(X)
    assert (wanted - plain).abs().max() > 1e-3
    torch.testing.assert_close(fold(model)(X), wanted)


NESTED = {
    'MobileNetV2': (
        lambda: mobilenetv2.InvertedResidual(8, 8, 1, 2), 'conv', 'conv.0'),
    'RegNet': (lambda: regnet.ResBottleneckBlock(
        8, 8, 1, nn.BatchNorm2d, nn.ReLU, 8, 1.0, None), 'f', 'f.c'),
}


@pytest.mark.parametrize('name', NESTED)
@pytest.mark.parametrize('way', ['hook', 'forward'])
@pytest.mark.parametrize('when', ['before', 'after'])
def test_sequences_whose_last_layer_a_step_takes_in(name, way, when):
    """Set on the sequence, or on one in it, before or after insertion."""
    build, *parts = NESTED[name]
    for part in parts:
        plain = perturb(nn.Sequential(build(), build())).double().eval()
        model = copy.deepcopy(plain)

        def change(model, part=part):
            module = model.get_submodule(f'1.{part}')
            if way == 'hook':
                module.register_forward_hook(twice)
            else:
                forward = module.forward
                module.forward = lambda t: 2 * forward(t)

        x = torch.rand(2, 8, 6, 6).double()
        before = plain(x)
        change(plain)
        wanted = plain(x)
        assert (wanted - before).abs().max() > 1e-3
        if when == 'before':
            change(model)
        insert_steps(model)
        if when == 'after':
            change(model)
        torch.testing.assert_close(model(x), wanted)


@pytest.mark.parametrize('name', NESTED)
@pytest.mark.parametrize('way', ['', 'pre_'])
def test_sequences_with_hooks_of_the_backward(name, way):
    build, *parts = NESTED[name]
    plain = perturb(nn.Sequential(build(), build())).double().eval()
    model = copy.deepcopy(plain)
    insert_steps(model)
    gradients = []
    for net in (plain, model):
        module = net.get_submodule(f'1.{parts[0]}')
        register = getattr(module, f'register_full_backward_{way}hook')
        register(lambda module, grads, *_: tuple(2 * t for t in grads))
        x = torch.ones(2, 8, 6, 6).double().requires_grad_()
        gradients.append(torch.autograd.grad(net(x).sum(), x)[0])
    torch.testing.assert_close(*gradients)


def halved(forward):
    """A decorator as libraries write them."""
    @functools.wraps(forward)
    def decorated(*args, **kwargs):
        return forward(*args, **kwargs) / 2
    return decorated


@pytest.mark.parametrize('cls, options', [
    (BasicBlock, dict(layers=[2, 2, 1, 1])),
    (mobilenetv2.InvertedResidual, dict(
        inverted_residual_setting=[[1, 8, 3, 1], [2, 16, 2, 2]]))])
@pytest.mark.parametrize('way', ['subclass', 'patch'])
def test_a_decorated_forward_is_another_one(cls, options, way, monkeypatch):
    """Its block is found by running, as any that nobody describes."""
    build = ResNet if cls is BasicBlock else mobilenetv2.MobileNetV2
    kind = cls
    if way == 'patch':
        monkeypatch.setattr(cls, 'forward', halved(cls.forward))
    else:
        kind = type('Halved', (cls, ), dict(forward=halved(cls.forward)))
    model = perturb(build(block=kind, num_classes=5, **options)).double()
    wanted = model.eval()(X)
    assert len(insert_steps(model)) == 3
    torch.testing.assert_close(model(X), wanted)


def test_a_sequence_of_another_forward_is_called():
    """The step leaves the norm in it to it."""
    model = perturb(mobilenetv2.InvertedResidual(8, 8, 1, 2)).double().eval()
    kind = type('Halved', (nn.Sequential, ), dict(
        forward=halved(nn.Sequential.forward)))
    model.conv = kind(*model.conv)
    x = torch.rand(2, 8, 6, 6).double()
    wanted = model(x)
    insert_steps(model)
    torch.testing.assert_close(model(x), wanted)


def test_offloaded_models_are_refused():
    """Whose gates nobody would bring from where they are kept."""
    accelerate = pytest.importorskip('accelerate')
    model = perturb(ResNet(BasicBlock, [2, 2, 1, 1], num_classes=5)).eval()
    wanted = model(X.float())
    accelerate.cpu_offload(model, execution_device=torch.device('cpu'))
    with pytest.raises(RuntimeError, match=r'conv1 \(Conv2d\) .* before'):
        insert_steps(model)
    assert torch.equal(model(X.float()), wanted)
