"""An evaluation that keeps all features, and blocks to evaluate."""

import torch
import torch.nn as nn
import torchvision

from mmstepnet.attentions import choose_step
from mmstepnet.stiffness import TrajectoryRecorder, neural_stiffness_index
from mmstepnet.tracing import hooked
from tests.utils import Adds, perturb, seeded

IMAGES = seeded(3, 3, 32, 32, seed=5)
MAPS = seeded(2, 8, 5, 5)
ONE = torch.ones(())


def ready(model):
    perturb(model)
    model.eval()  # returns None in the hosts
    return model


def size(x):
    return x.detach().double().flatten(1).norm(dim=1)


def readings(x, f, step, out):
    """Every reading of one step by its formula, in float64."""
    x, f, step, out = (t.double() for t in (x, f, step, out))
    return dict(
        adaptive=neural_stiffness_index(x, x + f * step, step),
        unit=size(f * step) / size(x),
        returned=size(out - x) / size(x),
        x_norm=size(x),
        f_norm=size(f),
        step_mean=step.expand_as(x).flatten(1).mean(1),
    )


def recorded(model, *batches, blocks=None):
    """The recorder of passes without gradients."""
    torch.manual_seed(0)
    with TrajectoryRecorder(model, blocks) as recorder, torch.no_grad():
        for batch in batches:
            model(batch)
    return recorder


def block_of(step):
    """Name of a block, from that of its step."""
    for suffix in ('.step', '.attn_step', '.mlp_step', '.ffn_step'):
        step = step.removesuffix(suffix)
    return step


def assert_recorded(recorder, model, steps, *batches, rtol=1e-5):
    """Every reading is that of an evaluation that keeps all features.

    Args:
        steps (Callable): ``steps(block, *inputs)`` gives (x, f, Δt) of each
            step of a block. What a step returns is the next one's x, or what
            the block returns.
    """
    names, rows, parts = list(map(block_of, recorder.blocks)), [], []

    def keep(block, args):
        block.given = [a.clone() if torch.is_tensor(a) else a for a in args]

    def measure(block, args, out):
        found = steps(block, *block.given)
        x, f, step = found[-1]
        ends = [x for x, *_ in found[1:]] + [
            out if out.shape == x.shape else x + f * step
        ]
        rows.extend(readings(*s, end) for s, end in zip(found, ends))

    torch.manual_seed(0)
    with (
        torch.no_grad(),
        hooked(
            [
                handle
                for name in dict.fromkeys(names)
                for block in [model.get_submodule(name)]
                for handle in (
                    block.register_forward_pre_hook(keep),
                    block.register_forward_hook(measure),
                )
            ]
        ),
    ):
        for batch in batches:
            rows.clear()
            model(batch)
            parts.append(
                {
                    name: torch.stack([row[name] for row in rows], 1)
                    for name in rows[0]
                }
            )
    for name, value in recorder.record.items():
        expected = torch.cat([part[name] for part in parts])
        assert value.dtype == torch.float32 and expected.mean() > 0
        torch.testing.assert_close(value.double(), expected, rtol=rtol, atol=0)


def branch_of(block, x):
    """f of a post-activation block of the hosts, by its parts."""
    count = 3 if hasattr(block, 'conv3') else 2
    norm = 'bn' if hasattr(block, 'bn1') else 'norm'
    for k in range(1, count + 1):
        x = getattr(block, f'{norm}{k}')(getattr(block, f'conv{k}')(x))
        x = x.relu() if k < count else x
    return x


def post_activation(gate=lambda block, x, f: ONE):
    """The step of a post-activation block."""

    def steps(block, x):
        f = branch_of(block, x)
        return [(x, f, gate(block, x, f))]

    return steps


def residual_step(block, x):
    """The step of a :class:`Residual`."""
    return [(x, block.f(x), ONE)]


def our_step(block, x, f):
    attention = block.step.attention
    return ONE if attention is None else choose_step(attention, x, f)


def small_resnet():
    """Bottlenecks of torchvision; three of them are recorded."""
    resnet = torchvision.models.resnet
    return resnet.ResNet(resnet.Bottleneck, [2, 3, 1, 1])


class Residual(Adds):
    """A block of maps that adds in place, with an activation or without."""

    def __init__(self, last=None):
        super().__init__(
            nn.Sequential(
                nn.Conv2d(8, 8, 3, padding=1),
                nn.ReLU(inplace=True),
                nn.Conv2d(8, 8, 3, padding=1),
            )
        )
        self.last = last

    def forward(self, x):
        f = self.f(x)
        f += x
        return f if self.last is None else self.last(f)


def row(make, count=3):
    return nn.Sequential(*(make() for _ in range(count)))


class Net(nn.Module):
    """Blocks in an order; it fails before one of them."""

    def __init__(self, order=range(4)):
        super().__init__()
        self.blocks = nn.ModuleList([Residual() for _ in range(4)])
        self.order, self.fail_at, self.error = order, None, KeyError

    def forward(self, x):
        for k in self.order:
            if self.fail_at == k:
                raise self.error('lost')
            x = self.blocks[k](x)
        return x


class Windows(nn.Module):
    """The second stage sees quarters of images, as so many samples."""

    def __init__(self):
        super().__init__()
        self.image, self.window = (
            row(lambda: Residual(nn.ReLU()), 2) for _ in range(2)
        )

    def forward(self, x):
        n, c, h, w = x.shape
        x = self.image(x).view(n, c, 2, h // 2, 2, w // 2)
        return self.window(
            x.permute(0, 2, 4, 1, 3, 5).reshape(n * 4, c, h // 2, w // 2)
        )
