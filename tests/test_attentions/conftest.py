import pytest
import torch

# name: arguments beside the channels
ATTENTIONS = {
    'SE': dict(type='SE'),
    'CBAM': dict(type='CBAM'),
    'ECA': dict(type='ECA'),
    'SEM': dict(type='SEM'),
    'SRM': dict(type='SRM'),
    'FCA': dict(type='FCA'),
    'SGE': dict(type='SGE'),
    'StepNet': dict(type='StepNet'),
    'StepNet-x': dict(type='StepNet', inputs='x'),
    'StepNet-x_next': dict(type='StepNet', inputs='x_next'),
    'StepNet-difference': dict(type='StepNet', inputs='difference'),
    'StepNet-cited': dict(type='StepNet', iebn='cited'),
    'OursSharedMLP': dict(type='OursSharedMLP'),
    'OursDepthwiseConv': dict(type='OursDepthwiseConv'),
    'OursNoNorm': dict(type='OursNoNorm'),
    'OursNormFirst': dict(type='OursNormFirst'),
    'OursMeanStd': dict(type='OursMeanStd'),
}


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
