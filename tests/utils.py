import socket

import pytest
import torch
import torch.nn as nn
from torch.utils._pytree import tree_leaves

TORCH_21 = torch.__version__.startswith('2.1.')
"""Whether this is the PyTorch of the upstream stack."""


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
        for t in tree_leaves((got, expected))
    )
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)


def rounding(got, exact):
    """How far float32 is from float64, in norm."""
    return float((got - exact).detach().norm() / exact.detach().norm())
