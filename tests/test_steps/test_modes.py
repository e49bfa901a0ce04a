"""Networks of others, with steps, in the ways in which networks are used."""

import copy

import pytest
import torch

from mmstepnet import TrajectoryRecorder
from tests.families import LIBRARIES, find_family
from tests.utils import not_on_torch_21, outputs, steps_of, with_moved_steps

from .insertion import difference


def stepped(library, name):
    """A small network whose gates have moved, and its input."""
    family = find_family(library, name)
    model = with_moved_steps(family.build(), **dict(family.options))
    model.eval()  # returns nothing in some hosts
    return model, family.inputs()


@pytest.mark.parametrize(
    'library, name',
    [('torchvision', 'ResNet, basic'), ('timm', 'ConvNeXt'), ('timm', 'ViT')],
)
@pytest.mark.parametrize(
    'dtype',
    [
        torch.bfloat16,
        pytest.param(
            torch.float16,
            marks=not_on_torch_21('has no float16 autocast on CPU'),
        ),
    ],
)
def test_autocast(library, name, dtype):
    """As far from float32 as the network without steps, and trainable."""
    model, inputs = stepped(library, name)
    plain = LIBRARIES[library]()[name].build()
    state = model.state_dict()
    plain.load_state_dict({k: state[k] for k in plain.state_dict()})
    plain.eval()
    with torch.no_grad():
        errors = []
        for net in (model, plain):
            wanted = outputs(net, inputs)
            with torch.autocast('cpu', dtype):
                errors.append(difference(outputs(net, inputs), wanted))
    assert errors[0] < max(3 * errors[1], torch.finfo(dtype).eps)
    with torch.autocast('cpu', dtype):
        loss = sum(o.float().square().mean() for o in outputs(model, inputs))
    loss.backward()
    for step in steps_of(model).values():
        for p in step.attention.parameters():
            assert p.grad.dtype == torch.float32
            assert p.grad.isfinite().all() and p.grad.abs().max() > 0


def gradients(model, inputs):
    model.zero_grad()
    sum(o.square().mean() for o in outputs(model, inputs)).backward()
    return {
        n: p.grad.clone()
        for n, p in model.named_parameters()
        if p.grad is not None
    }


@pytest.mark.parametrize(
    'library, name',
    [
        ('timm', 'ResNet, basic'),
        ('timm', 'ViT'),
        ('transformers', 'DINOv2'),
        ('mmpretrain', 'mmpretrain ResNet-50, checkpointed'),
        ('mmpretrain', 'mmpretrain Swin, checkpointed'),
    ],
)
def test_checkpointing_as_the_host_does(library, name):
    """Also where somebody records the forward pass alone."""
    model, inputs = stepped(library, name)
    model.train()
    twin = copy.deepcopy(model)
    for block in twin.modules():
        block.with_cp = False
    if library == 'timm':
        model.set_grad_checkpointing()
    elif library == 'transformers':
        model.gradient_checkpointing_enable()
    results = []
    for net in (model, twin):
        recorder = TrajectoryRecorder(net)
        recorder.start(once=True)
        results.append(gradients(net, inputs))
        assert len(recorder) == 2
    assert results[0].keys() == results[1].keys()
    for key, grad in results[0].items():
        torch.testing.assert_close(
            grad,
            results[1][key],
            rtol=1e-3,
            atol=1e-4 * float(grad.abs().max()),
        )
