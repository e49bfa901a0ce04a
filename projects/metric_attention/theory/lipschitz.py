"""How far propagation can spread what is near: norms of its Jacobian.

    python -m projects.metric_attention.theory.lipschitz

The Lipschitz Constant of Self-Attention (https://arxiv.org/abs/2006.04710),
to which Section 4.2 of https://arxiv.org/abs/2412.18288 refers: that of dot
products is unbounded, as a point at the origin sees all others alike and its
similarity changes by their spread; that of L2 is bounded. Metric-attention's
is not treated there. Norms at points are lower bounds of the constant.
"""

import argparse
from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd.functional import jacobian

from mmstepnet.propagation import (
    Metric,
    dot_product_propagation,
    metric_propagation,
)

COUNT, DIMS, DRAWS = 16, 4, 20
SCALES = (0.1, 1.0, 10.0, 100.0)


def by_metric() -> Callable[[Tensor], Tensor]:
    """Propagation by metric-attention with its weights at their start."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        embed = Metric(DIMS, hidden_dims=DIMS).double().embed
    return lambda x: metric_propagation(embed(x), embed(x), x)


PROPAGATIONS = {
    'dot product': lambda x: dot_product_propagation(x, x, x),
    'L2': lambda x: metric_propagation(x, x, x),
    'metric': by_metric(),
}
"""Queries and keys are the points themselves, and so are the values."""


def largest_norm(propagate: Callable[[Tensor], Tensor],
                 scale: float) -> float:
    """Largest spectral norm of the Jacobian over draws of points.

    Args:
        propagate (Callable): (N, d) -> (N, d).
        scale (float): Of normal points; the first is at the origin.
    """
    generator = torch.Generator().manual_seed(0)
    norms = []
    for _ in range(DRAWS):
        x = scale * torch.randn(COUNT, DIMS, generator=generator).double()
        x[0] = 0
        found = jacobian(propagate, x).reshape(x.numel(), x.numel())
        norms.append(torch.linalg.matrix_norm(found, 2).item())
    return max(norms)


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print('| points of scale | ' + ' | '.join(PROPAGATIONS) + ' |')
    print('|---:|' + '---:|' * len(PROPAGATIONS))
    for scale in SCALES:
        norms = (largest_norm(each, scale) for each in PROPAGATIONS.values())
        print(f'| {scale:g} | ' + ' | '.join(f'{n:.3g}' for n in norms)
              + ' |')


if __name__ == '__main__':
    main()
