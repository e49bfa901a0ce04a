import torch
import torch.nn as nn
from torch.optim import SGD

from projects.autocast import AutocastOptimWrapper


def test_a_step_is_that_of_rounded_products():
    """Outputs are bfloat16, weights and their gradients stay float32."""
    layer, x = nn.Linear(64, 8), torch.randn(16, 64)
    a, w, b = (
        v.detach().bfloat16().double() for v in (x, layer.weight, layer.bias)
    )
    before = layer.weight.detach().clone()
    wrapper = AutocastOptimWrapper(optimizer=SGD(layer.parameters(), lr=0.1))
    with wrapper.optim_context(layer):
        out = layer(x)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(
        out.double(), a @ w.T + b, rtol=2**-7, atol=2**-8
    )
    wrapper.update_params(out.float().sum())
    assert layer.weight.dtype == torch.float32
    torch.testing.assert_close(
        layer.weight,
        before - 0.1 * x.sum(0).expand(8, -1),
        rtol=0.02,
        atol=0.02,
    )
