import pytest
import torch

from mmstepnet import attentions

# name: arguments beside the channels
ATTENTIONS = {
    **{
        name: dict(type=name)
        for name in sorted(attentions.ATTENTIONS)
        if name != 'Plain'
    },
    **{
        f'StepNet-{inputs}': dict(type='StepNet', inputs=inputs)
        for inputs in ('x', 'x_next', 'difference')
    },
    'StepNet-cited': dict(type='StepNet', iebn='cited'),
    'LayerScale-shared': dict(type='LayerScale', shared=True),
}
FIXED = dict(type='LayerScale', learned=False)
"""It has a value and no parameters."""


@pytest.fixture(params=ATTENTIONS)
def cfg(request):
    return ATTENTIONS[request.param]


@pytest.fixture
def maps():
    """Function that gives random x and f of a shape."""

    def maps(*shape, seed=1, dtype=torch.float32):
        generator = torch.Generator().manual_seed(seed)
        x, f = torch.randn(2, *shape, generator=generator, dtype=dtype)
        # Channels differ in mean and scale, as behind a trained norm.
        level = torch.randn(2, shape[1], 1, 1, generator=generator)
        return x.relu() + level[0].abs(), f * level[1].exp() + level[1]

    return maps
