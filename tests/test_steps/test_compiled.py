"""Steps that are compiled against those that are not."""

import itertools
import warnings

import pytest
import torch
import torch.nn as nn
from torch._dynamo.testing import CompileCounter

from mmstepnet import steps
from mmstepnet.attentions import ECA, SE, SEM, SRM, StepNet
from mmstepnet.steps import compiled, kernels
from mmstepnet.steps.compiled import Compiled
from mmstepnet.steps.kernels import plain
from tests.test_steps.cases import FORMATS, build, inputs, run, worst

COMPILES = kernels.compiles('cpu')

needs_compiler = pytest.mark.skipif(
    not COMPILES, reason='needs a C++ compiler and a PyTorch that compiles')


@pytest.fixture
def made(monkeypatch):
    """Functions are compiled, and have to be."""
    if not COMPILES:
        pytest.skip('needs a C++ compiler and a PyTorch that compiles')
    monkeypatch.setattr(compiled, 'compiles', lambda device: True)
    monkeypatch.setattr(compiled, '_made', {})
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.filterwarnings('error', message='the residual step runs')
        yield compiled._made
    assert all(f.ready and not f.broken for f in compiled._made.values())


# Others differ by the gate alone, which runs uncompiled in test_fused.
@pytest.mark.parametrize('attention', [
    StepNet, *(pytest.param(gate, marks=pytest.mark.slow)
               for gate in (SE, ECA, SEM, SRM))])
def test_equals_reference_in_float64(attention, made):
    torch.manual_seed(0)
    step, norm = build(attention, 6)
    step.double()
    norm.double()
    for memory_format in FORMATS:
        for shape in ((5, 6, 7, 4), (3, 6, 9, 5)):
            args = inputs(shape, memory_format=memory_format)
            error, name = worst(
                run(True, step, norm, *args), run(False, step, norm, *args))
            assert error < 1e-10, (shape, name)


@pytest.mark.slow
@pytest.mark.parametrize('norm,training,dtype', [
    (False, True, torch.float64), (True, False, torch.float64),
    (True, True, torch.bfloat16)])
def test_other_kinds(norm, training, dtype, made):
    torch.manual_seed(0)
    step, norm = build(StepNet, 6, relu=norm, norm=norm)
    modules = nn.ModuleList([step] if norm is None else [step, norm])
    modules.double().train(training)
    x, c, grad = inputs((5, 6, 7, 5))
    if dtype == torch.bfloat16:
        modules.float()
        x, c = x.bfloat16(), c.bfloat16()
        got = step(x, c, norm)
        with steps.fused(False):
            exact = step(x.double(), c.double(), norm.double())
        torch.testing.assert_close(got.double(), exact, rtol=2e-2, atol=2e-2)
        return
    error, name = worst(run(True, step, norm, x, c, grad),
                        run(False, step, norm, x, c, grad))
    assert error < 1e-10, name
    expected = run(False, step, norm, x, c, grad)['out']
    with torch.no_grad():  # the branch may be what a hook has kept
        kept = c.clone()
        torch.testing.assert_close(step(x, c, norm), expected)
        assert torch.equal(c, kept)


@pytest.mark.slow
def test_large_means(made):
    """Where E[c^2] - E[c]^2 is off by a factor, in float32."""
    c = torch.randn(1, 2, 6, 6, dtype=torch.float64) + 1e4
    for memory_format in FORMATS:
        maps = c.float().contiguous(memory_format=memory_format)
        _, squares = Compiled(plain.moments)(maps.device, (), maps)
        torch.testing.assert_close(
            squares[0].double() / 36, maps.double().var((2, 3), correction=0),
            rtol=1e-3, atol=0)


@needs_compiler
def test_blocks_and_sizes_share_graphs(monkeypatch):
    """All steps of a network, any size of images and any batch."""
    monkeypatch.setattr(compiled, 'compiles', lambda device: True)
    monkeypatch.setattr(compiled, '_made', {})
    torch._dynamo.reset()
    counter = CompileCounter()
    compile_ = torch.compile
    monkeypatch.setattr(torch, 'compile', lambda f, **kw: compile_(
        f, **{**kw, 'backend': counter}))
    for channels in (6, 6, 10):
        step, norm = build(StepNet, channels)
        for n, side in ((3, 5), (4, 5), (3, 7)):
            x, c, grad = inputs((n, channels, side, side + 4), torch.float32)
            run(True, step, norm, x, c, grad)
    assert counter.frame_count == 2


def standardised(sums, weight, pixels):
    """Vectors as a step has them, with what reduces them and follows."""
    means = sums.sum(0) / pixels
    return (means - means.mean(0)) / (means.var(0) + 1e-5).sqrt() * weight


@needs_compiler
def test_graphs_of_vectors(monkeypatch):
    """One for each C, one more for all sizes of maps, one for all else."""
    monkeypatch.setattr(compiled, 'compiles', lambda device: True)
    monkeypatch.setattr(compiled, '_made', {})
    monkeypatch.setattr(compiled, '_images', {})
    monkeypatch.setattr(compiled, 'BATCHES', 1)
    torch._dynamo.reset()
    counter = CompileCounter()
    compile_ = torch.compile
    monkeypatch.setattr(torch, 'compile', lambda f, options, **kw: compile_(
        f, **kw, backend=counter))
    for n, channels, spans, pixels, graphs in (
            (4, 6, 3, 16, 1), (4, 6, 3, 16, 1), (4, 10, 3, 16, 2),
            (4, 6, 5, 25, 3), (4, 6, 4, 20, 3),
            (7, 6, 3, 16, 4), (5, 10, 4, 20, 4), (4, 6, 3, 16, 4)):
        function = compiled.compiled_on_gpu(standardised, n, channels, 'key')
        sums, weight = torch.randn(spans, n, channels), torch.randn(channels)
        torch.testing.assert_close(
            function(sums.device, (), sums, weight, pixels),
            standardised(sums, weight, pixels))
        assert counter.frame_count == graphs, (n, channels, spans)


@pytest.mark.slow
def test_one_kernel_of_vectors(made, monkeypatch):
    """Inductor's options for them change no value."""
    monkeypatch.setattr(compiled, '_images', {})
    for n in (2, 9, 300):
        function = compiled.compiled_on_gpu(standardised, n, 6)
        sums = torch.randn(3, n, 6, dtype=torch.float64)
        weight = torch.randn(6, dtype=torch.float64)
        torch.testing.assert_close(
            function(sums.device, (), sums, weight, 7),
            standardised(sums, weight, 7))


@needs_compiler
@pytest.mark.parametrize('fails', ['compiling', 'running'])
def test_failure(fails, monkeypatch):
    """It costs a warning and time; nothing is done twice."""
    monkeypatch.setattr(compiled, 'compiles', lambda device: True)
    torch._dynamo.reset()

    def backend(graph, inputs):
        if fails == 'compiling':
            raise OSError('no space for objects')

        def run(*args):
            graph(*args)
            raise RuntimeError('no kernel image')
        return run

    def function(x, total):
        total.add_(1)
        return x + 1
    tried = Compiled(function)
    tried.compiled = torch.compile(function, backend=backend)
    total = torch.zeros(2)
    said = '(?s)uncompiled.*no (space|kernel)'
    with pytest.warns(UserWarning, match=said) as s:
        for _ in range(2):
            x = torch.zeros(2)
            assert tried(x.device, [total], x, total).tolist() == [1, 1]
    assert len(s) == 1
    assert total.tolist() == [2, 2]


@needs_compiler
def test_errors_of_the_user_are_his(monkeypatch):
    monkeypatch.setattr(compiled, 'compiles', lambda device: True)

    def function(x):
        raise ValueError('at least 2 images')
    with pytest.raises(ValueError, match='at least 2 images'):
        Compiled(function)(torch.device('cpu'), (), torch.zeros(2))


@needs_compiler
def test_one_graph_for_every_caller(monkeypatch):
    """Modes are none of the function's business."""
    monkeypatch.setattr(compiled, 'compiles', lambda device: True)
    torch._dynamo.reset()
    counter = CompileCounter()

    def function(maps):
        return maps.relu() + 1
    kernel = Compiled(function)
    kernel.compiled = torch.compile(function, backend=counter, dynamic=True,
                                    fullgraph=True)
    for height, autocast, grad_mode in itertools.product(
            (5, 6), (False, True), (False, True)):
        maps = torch.randn(2, 3, height, 7)
        with (torch.set_grad_enabled(grad_mode),
              torch.autocast('cpu', torch.bfloat16, enabled=autocast)):
            found = kernel(maps.device, (), maps)
        torch.testing.assert_close(found, maps.relu() + 1)
    assert counter.frame_count == 1


@needs_compiler
def test_more_graphs_than_dynamo_allows(monkeypatch):
    """A call of a further kind runs uncompiled, the compiled ones stay."""
    monkeypatch.setattr(compiled, 'compiles', lambda device: True)
    torch._dynamo.reset()
    counter = CompileCounter()

    def function(x):
        return x + 1
    kernel = Compiled(function)
    kernel.compiled = torch.compile(function, backend=counter, dynamic=True,
                                    fullgraph=True)
    with torch._dynamo.config.patch(recompile_limit=2):
        for dtype in (torch.float32, torch.float64, torch.bfloat16,
                      torch.float16, torch.float32):
            x = torch.zeros(2, dtype=dtype)
            assert kernel(x.device, (), x).tolist() == [1, 1]
    assert counter.frame_count == 2
    assert not kernel.broken


def test_where_nothing_compiles(monkeypatch):
    """A CPU without a compiler takes the reference path."""
    monkeypatch.setattr(kernels, 'compiles', lambda device: False)
    assert kernels.backend(torch.zeros(8, 64, 64, 64)) is None
    assert kernels.backend(torch.empty(1, device='meta')) is None
