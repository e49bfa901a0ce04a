"""Steps under compilers and exporters: every sum is one image's."""

import copy
import functools
import itertools
import warnings

import pytest
import torch
import torch.nn as nn
from torch._dynamo.backends.debugging import aot_eager_decomp_partition
from torch.utils.checkpoint import checkpoint

from mmstepnet import attentions, steps
from mmstepnet.attentions import CBAM, SE, StepNet
from mmstepnet.attentions.base import ATTENTIONS, ChannelGate
from mmstepnet.steps.tail import dispatch
from mmstepnet.steps.tail.by_image import scale_by_image
from tests.programs import run_tool
from tests.test_steps.cases import (
    FORMATS,
    NORMS,
    build,
    build_modes,
    errors,
    inputs,
    run,
)
from tests.utils import StepBlock, randomise

GATES = [
    name for name, kind in ATTENTIONS.items() if issubclass(kind, ChannelGate)
]

compilers = pytest.mark.skipif(
    torch.__version__ < (2, 7), reason='older ones are taken for exporters'
)


@pytest.fixture
def by_image(monkeypatch):
    """Count the steps that are read by image, also in eager mode."""
    taken = []
    monkeypatch.setattr(
        dispatch,
        'scale_by_image',
        lambda *args: taken.append(1) or scale_by_image(*args),
    )
    return taken


@pytest.fixture
def as_compiled(by_image, monkeypatch):
    """Compute in eager mode what a compiler is shown."""
    monkeypatch.setattr(dispatch, 'is_compiling', lambda: True)
    return by_image


def check(found, wanted, limit=1e-10):
    """Compare what has a gradient, or is one."""
    # Some are 0 but for rounding: the gradient of a bias before a BN.
    kept = {
        k
        for k, v in wanted.items()
        if v is not None and v.double().norm() > limit
    }
    assert all(found[k] is None for k, v in wanted.items() if v is None)
    found = errors(
        *({k: values[k] for k in kept} for values in (found, wanted))
    )
    assert max(found.values()) < limit, found


@pytest.mark.parametrize('mode', NORMS[:4])
@pytest.mark.parametrize('name', GATES)
def test_values_in_float64(name, mode, as_compiled):
    """Result, all gradients, running statistics and counts.

    A gate in training, in eval mode and frozen, in either format.
    """
    _, norm = build_modes(mode, 'batch', 32)
    for how, memory_format in itertools.product(
        ('train', 'eval', 'frozen'), FORMATS
    ):
        torch.manual_seed(0)
        step, _ = build(getattr(attentions, name), 32)
        step.double().train(how != 'eval').requires_grad_(how != 'frozen')
        args = inputs((4, 32, 5, 7), memory_format=memory_format)
        check(run(True, step, norm, *args), run(False, step, norm, *args))
    assert len(as_compiled) == 6


@pytest.mark.parametrize('mean', [0, 100])
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
@pytest.mark.parametrize('name', ['StepNet', 'SE', 'SRM'])
def test_precision(name, dtype, mean, as_compiled):
    """Over some draws, at most twice as far from float64 as the reference."""
    squares = {True: {}, False: {}}
    for seed in range(4):
        torch.manual_seed(seed)
        step, norm = build(getattr(attentions, name), 32, relu=False)
        args = inputs((8, 32, 9, 8), dtype, mean=mean)
        norm.running_mean += mean  # as behind the first steps
        exact = run(False, step, norm, *args, torch.float64)
        for fused, sums in squares.items():
            for key, error in errors(
                run(fused, step, norm, *args), exact
            ).items():
                sums[key] = sums.get(key, 0) + error**2
    for key, reference in squares[False].items():
        limit = 2 * reference**0.5 + 1e-6
        assert squares[True][key] ** 0.5 <= limit, key


@pytest.mark.parametrize(
    'norm',
    [
        pytest.param(None, id='no norm'),
        pytest.param(nn.Identity(), id='Identity'),
        pytest.param(nn.GroupNorm(2, 4), id='GroupNorm'),
        pytest.param(nn.InstanceNorm2d(4), id='InstanceNorm'),
        pytest.param(nn.SyncBatchNorm(4).eval(), id='SyncBatchNorm'),
        pytest.param(nn.BatchNorm2d(4, affine=False), id='no weights'),
        pytest.param(nn.BatchNorm2d(4, momentum=None), id='no momentum'),
    ],
)
def test_others_take_the_reference_path(norm, as_compiled):
    """Other norms, other attentions, and what is hooked or observed."""
    x, c, _ = inputs((3, 4, 5, 6), torch.float32)
    (step, known), seen = build(StepNet, 4), []
    step(x, c, norm)
    build(CBAM, 4)[0](x, c, known)
    for place in (known.register_forward_hook, step.observe):
        handle = place(lambda *args: seen.append(1))
        step(x, c, known)
        handle.remove()
    assert len(seen) == 2 and not as_compiled
    for other in (nn.BatchNorm2d(1), nn.BatchNorm2d(3)):
        with pytest.raises(RuntimeError, match='expected|should'):
            step(x, c, other)


class Net(nn.Sequential):
    """Two blocks, one with stochastic depth that draws nothing."""

    def __init__(self, gate=StepNet):
        super().__init__(StepBlock(gate(8)), StepBlock(gate(8)))
        self[1].step.drop_path = nn.Dropout(0.0)
        randomise(self)


def trained(net, function, x):
    """Gradients and statistics after two passes."""
    for _ in range(2):
        function(x).square().mean().backward()
    return {
        **{k: p.grad for k, p in net.named_parameters()},
        **dict(net.named_buffers()),
    }


WAYS = {
    'whole': lambda net: net,
    'reentrant': lambda net: functools.partial(
        checkpoint, net, use_reentrant=True
    ),
    'non-reentrant': lambda net: functools.partial(
        checkpoint, net, use_reentrant=False
    ),
    'autocast': lambda net: torch.autocast('cpu', torch.bfloat16)(net.forward),
}


@compilers
@pytest.mark.parametrize(
    'gate, way',
    [*((StepNet, way) for way in WAYS), (SE, 'whole'), (SE, 'autocast')],
)
def test_compiled(gate, way, calls):
    """A training without a graph break, as in eager mode."""
    torch.compiler.reset()
    half = way == 'autocast'
    net = Net(gate).to(torch.float32 if half else torch.float64)
    x = torch.randn(
        4,
        8,
        6,
        7,
        requires_grad=way == 'reentrant',
        dtype=net[0].conv1.weight.dtype,
    )
    twin, graphs = copy.deepcopy(net), []
    with steps.fused(False):
        # A compiler updates statistics once, whatever is checkpointed.
        wanted = trained(twin, WAYS[way if half else 'whole'](twin), x)

    def backend(graph, inputs):
        graphs.append(graph.print_readable(False))
        return aot_eager_decomp_partition(graph, inputs)

    found = trained(
        net, torch.compile(WAYS[way](net), backend=backend, fullgraph=True), x
    )
    check(found, wanted, 0.1 if half else 1e-10)
    assert 'var_mean' in graphs[0] and not calls
    torch.compiler.reset()


@compilers
def test_dynamic_shapes(by_image):
    torch.compiler.reset()
    net = Net().double()
    compiled = torch.compile(
        copy.deepcopy(net), backend='eager', fullgraph=True, dynamic=True
    )
    for n, side in ((3, 6), (5, 9), (2, 7)):
        x = torch.randn(n, 8, side, side + 1, dtype=torch.float64)
        found = compiled(x)
        with steps.fused(False):
            torch.testing.assert_close(found, net(x))
    torch.compiler.reset()


def test_traced_and_exported(calls, by_image):
    """Others know BN and pooling by their names."""
    net = Net().eval().double()
    args = (torch.randn(3, 8, 6, 6, dtype=torch.float64),)
    expected = net(*args)
    calls.clear()
    with warnings.catch_warnings():  # which a tracer gives where it is asked
        warnings.simplefilter('error', torch.jit.TracerWarning)
        traced = torch.jit.trace(net, args, check_trace=False)
    exported = torch.export.export(net, args)
    if torch.__version__ >= (2, 7):
        by_dynamo = torch.export.export(net, args, strict=True)
        assert 'var_mean' not in str(by_dynamo.graph)
    assert not calls and not by_image
    for other in (traced, exported.module()):
        torch.testing.assert_close(other(*args), expected)
    assert 'batch_norm' in str(exported.graph)


SCRIPT = """
import sys, torch
from tests.utils import StepBlock
from mmstepnet.attentions import SE, SRM, StepNet
for gate in (StepNet, SE, SRM):
    net = StepBlock(gate(8))
    for _ in range(2):
        net(torch.randn(3, 8, 80, 80)).square().sum().backward()
print([m for m in sys.modules
       if m.startswith(('torch._dynamo', 'torch._inductor', 'triton'))])
"""


@pytest.mark.skipif(
    torch.__version__ < (2, 2), reason='older ones import it themselves'
)
def test_no_compiler_is_imported_by_a_training_step():
    assert run_tool('-c', SCRIPT).stdout.strip() == '[]'
