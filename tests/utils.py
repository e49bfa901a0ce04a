"""What the tests of several rooms share."""

import socket

import numpy as np
import pytest
import torch
import torch.nn as nn
from torch import Tensor
from torch.utils._pytree import tree_flatten

from mmstepnet import ResidualStep, insert_steps
from mmstepnet.stiffness import FIELDS

TORCH_21 = torch.__version__.startswith('2.1.')
"""Whether this is the PyTorch of the upstream stack."""

RECORDING_SETTINGS = dict(
    model='net', split='val', reading='unit', dataset_size=4
)
"""Settings of a recording: those that it must have, and a reading."""

OCTAHEDRON = np.array(
    [
        [0, 2, 4],
        [2, 1, 4],
        [1, 3, 4],
        [3, 0, 4],
        [2, 0, 5],
        [1, 2, 5],
        [3, 1, 5],
        [0, 3, 5],
    ]
)
"""Its faces, as numbers of their vertices."""


def not_on_torch_21(why):
    """Skip what PyTorch 2.1 cannot do; ``why`` completes the sentence."""
    return pytest.mark.skipif(TORCH_21, reason=f'PyTorch 2.1 {why}')


class Adds(nn.Module):
    """x + f(x), as people write it."""

    def __init__(self, f):
        super().__init__()
        self.f = f

    def forward(self, x):
        return x + self.f(x)


class StepBlock(nn.Module):
    """A basic block that is written with its step.

    It stands here because torchvision, which the small networks need, imports
    a compiler, and a test asks whether a step does.
    """

    def __init__(self, attention):
        super().__init__()
        self.conv1, self.conv2 = (
            nn.Conv2d(8, 8, 3, padding=1, bias=False) for _ in range(2)
        )
        self.norm1, self.norm2 = nn.BatchNorm2d(8), nn.BatchNorm2d(8)
        self.step = ResidualStep(attention, nn.ReLU(inplace=True))

    def forward(self, x):
        out = torch.relu_(self.norm1(self.conv1(x)))
        return self.step(x, self.conv2(out), self.norm2)


def seeded(*shape, seed=0):
    """Normal numbers, the same ones in every process."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def free_port():
    """A port that no job of this machine listens at, as a string."""
    with socket.socket() as server:
        server.bind(('127.0.0.1', 0))
        return str(server.getsockname()[1])


def perturb(model, seed=0):
    """Draw every weight, bias and running statistic anew.

    At the hosts' initialisation norms are the identity and f may be 0, where
    a wrong gate would pass a comparison.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if not tensor.is_floating_point():
                continue
            noise = torch.randn(tensor.shape, generator=generator)
            if name.endswith('running_var'):
                tensor.copy_(1 + 0.3 * noise.abs())
            elif tensor.dim() > 1:
                tensor.copy_(noise / tensor[0].numel() ** 0.5)
            elif name.endswith('weight') and 'attention' not in name:
                tensor.copy_(1 + 0.3 * noise)
            else:
                tensor.copy_(0.3 * noise)
    return model


def run(model, x):
    """Outputs, gradients of the parameters and of the input."""
    x = x.clone().requires_grad_()
    outs = model(x)
    weights = torch.Generator().manual_seed(1)
    loss = sum(
        (out * torch.randn(out.shape, generator=weights)).mean()
        for out in outs
    )
    loss.backward()
    grads = {n: p.grad for n, p in model.named_parameters()}
    return dict(enumerate(outs)), grads, dict(x=x.grad)


def same_tensors(got, expected, exact=False):
    """Of two ways through one network."""
    assert any(e is not None and e.abs().sum() > 0 for e in expected.values())
    if exact:
        torch.testing.assert_close(got, expected, rtol=0, atol=0)
    else:
        same(got, expected)


def same(got, expected):
    """Two ways through one network, in float64.

    There rounding stays far below this bound on every CPU, and any mistake
    is far above it. In float32 a network may round by 1e-4.
    """
    assert all(
        t is None or t.dtype == torch.float64
        for t in tree_flatten((got, expected))[0]
    )
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)


def rounding(got, exact):
    """How far float32 is from float64, in norm."""
    return float((got - exact).detach().norm() / exact.detach().norm())


def outputs(model: nn.Module, inputs: dict | Tensor) -> list[Tensor]:
    """All tensors that a model returns, from the same random numbers."""
    torch.manual_seed(1)
    out = model(**inputs) if isinstance(inputs, dict) else model(inputs)
    return list(_tensors(out))


def _tensors(out):
    if isinstance(out, Tensor):
        if out.is_floating_point():
            yield out
    elif isinstance(out, dict):
        yield from _tensors(list(out.values()))
    elif isinstance(out, (list, tuple)):
        for item in out:
            yield from _tensors(item)


def steps_of(model: nn.Module) -> dict[str, nn.Module]:
    """All ResidualSteps by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, ResidualStep)
    }


def perturb_gates(model: nn.Module) -> nn.Module:
    """Move every gate off its start, alike whatever wraps it."""
    for step in steps_of(model).values():
        perturb(step.attention)
    return model


def with_moved_steps(model: nn.Module, **options) -> nn.Module:
    """Put steps into a model, and move it and its gates off their start."""
    insert_steps(perturb(model), **options)
    return perturb_gates(model)


def randomise(*modules):
    """Draw parameters and buffers anew; no norm stays at its start."""
    for module in modules:
        for parameter in module.parameters():
            nn.init.normal_(parameter)
        for name, buffer in module.named_buffers():
            if name.endswith(('running_mean', 'weight', 'bias')):
                buffer.normal_()
            elif name.endswith('running_var'):
                buffer.uniform_(0.5, 2)


def no_hooks(model):
    """Whether nobody listens to a model any more."""
    return not any(
        m._forward_hooks
        or m._forward_pre_hooks
        or getattr(m, '_observers', None)
        for m in model.modules()
    )


@torch.no_grad()
def copy_attention(host, ours):
    """Weights of nn.MultiheadAttention from a DotProductAttention."""
    own = ours.pseudo_metric
    parts = (own.query, own.key, ours.value)
    host.in_proj_weight.copy_(torch.cat([p.weight for p in parts]))
    host.in_proj_bias.copy_(torch.cat([p.bias for p in parts]))
    host.out_proj.load_state_dict(ours.proj.state_dict())


def recording_arrays(n=4, length=3, seed=0, **settings):
    """What :class:`Trajectories` is made of, at random."""
    rng = np.random.default_rng(seed)
    return dict(
        **{name: rng.uniform(0, 1, (n, length)) for name in FIELDS},
        stages=np.array([0, 0, 1] if length == 3 else [0] * length),
        blocks=[f'layer1.{k + 1}' for k in range(length)],
        excluded=['layer1.0'],
        settings={**RECORDING_SETTINGS, **settings},
    )


def run_onnx(path, **inputs):
    """What onnxruntime makes of a file's inputs."""
    import onnxruntime

    session = onnxruntime.InferenceSession(
        path.read_bytes(), providers=['CPUExecutionProvider']
    )
    assert [given.name for given in session.get_inputs()] == list(inputs)
    return [
        torch.from_numpy(found)
        for found in session.run(
            None, {name: value.numpy() for name, value in inputs.items()}
        )
    ]
