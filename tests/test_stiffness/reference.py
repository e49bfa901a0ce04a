"""An evaluation that keeps all features, and blocks to evaluate."""

import torch
import torch.nn as nn
import torchvision

from mmstepnet.attentions import choose_step
from mmstepnet.stiffness import (
    READINGS,
    TrajectoryRecorder,
    neural_stiffness_index,
)
from tests.utils import perturb, seeded

IMAGES = seeded(3, 3, 32, 32, seed=5)


def ready(model):
    perturb(model)
    model.eval()  # returns None in the hosts
    return model


def relu(x):
    return x.clamp(min=0)


def branch_of(block):
    """f of a post-activation block, by its parts."""
    count = 3 if hasattr(block, 'conv3') else 2
    norm = 'bn' if hasattr(block, 'bn1') else 'norm'

    def branch(x):
        for k in range(1, count + 1):
            x = getattr(block, f'{norm}{k}')(getattr(block, f'conv{k}')(x))
            x = relu(x) if k < count else x
        return x

    return branch


def post_activation(branch=branch_of, gate=None):
    """Steps (x, f, Δt, x_next, out) of a post-activation block."""

    def steps(block, x):
        f = branch(block)(x)
        step = torch.ones(()) if gate is None else gate(block, x, f)
        x_next = x + f * step
        return [(x, f, step, x_next, relu(x_next))]

    return steps


def plain_step(x, f):
    return x, f, torch.ones(()), x + f, x + f


def our_step(block, x, f):
    attention = block.step.attention
    return (torch.ones(()) if attention is None
            else choose_step(attention, x, f))


def size(x):
    return x.detach().double().flatten(1).norm(dim=1)


def keep_features(model, names, steps, images):
    """All features at once, then every reading in float64, {name: (N, L)}."""
    kept = {}
    modules = dict(model.named_modules())
    handles = [
        modules[name].register_forward_pre_hook(
            lambda m, args, name=name: kept.update(
                {name: [a.clone() if torch.is_tensor(a) else a
                        for a in args]})) for name in names
    ]
    with torch.no_grad():
        model(images)
        for handle in handles:
            handle.remove()
        readings = {key: [] for key in (*READINGS, 'x_norm', 'f_norm',
                                        'step_mean')}
        for name in names:
            for x, f, step, x_next, out in steps(modules[name], *kept[name]):
                n = size(x)
                readings['adaptive'].append(
                    neural_stiffness_index(x, x + f * step, step)
                    if (step != 0).all() else size(f) / n)
                readings['unit'].append(size(x_next - x) / n)
                readings['returned'].append(size(out - x) / n)
                readings['x_norm'].append(n)
                readings['f_norm'].append(size(f))
                readings['step_mean'].append(
                    step.double().expand_as(x).flatten(1).mean(1))
    return {key: torch.stack(v, 1) for key, v in readings.items()}


def recorded(model, *batches, blocks=None):
    """The recorder of passes without gradients."""
    with TrajectoryRecorder(model, blocks) as recorder, torch.no_grad():
        for batch in batches or (IMAGES, ):
            model(batch)
    return recorder


def block_of(step):
    """Name of a block, from that of its step."""
    for suffix in ('.step', '.attn_step', '.mlp_step', '.ffn_step'):
        step = step.removesuffix(suffix)
    return step


def assert_recorded(recorder, model, steps, *batches, rtol=1e-5):
    """Every reading is that of an evaluation that keeps all features."""
    blocks = list(dict.fromkeys(map(block_of, recorder.blocks)))
    parts = [keep_features(model, blocks, steps, images)
             for images in batches or (IMAGES, )]
    for name, value in recorder.record.items():
        expected = torch.cat([part[name] for part in parts])
        assert value.dtype == torch.float32 and expected.min() > 0
        torch.testing.assert_close(value.double(), expected, rtol=rtol, atol=0)


def small_resnet():
    """Bottlenecks of torchvision; three of them are recorded."""
    resnet = torchvision.models.resnet
    return resnet.ResNet(resnet.Bottleneck, [2, 3, 1, 1])


def no_hooks(model):
    return not any(
        m._forward_hooks or m._forward_pre_hooks
        or getattr(m, '_observers', None) for m in model.modules())


class Residual(nn.Module):
    """A block of a class of its own, with or without activation behind it."""

    def __init__(self, last=None):
        super().__init__()
        self.first = nn.Conv2d(8, 8, 3, padding=1)
        self.middle = nn.ReLU(inplace=True)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.last = last

    def branch(self, x):
        return self.second(relu(self.first(x)))

    def forward(self, x):
        f = self.second(self.middle(self.first(x)))
        f += x
        return f if self.last is None else self.last(f)


def residual_step(last):
    """The step of such a block, with ``last`` behind it."""
    def steps(block, x):
        f = block.branch(x)
        return [(x, f, torch.ones(()), x + f, last(x + f))]

    return steps


def blocks_in_a_row(block=Residual):
    return ready(nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.Sequential(*[block() for _ in range(3)])))
