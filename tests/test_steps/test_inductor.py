"""Compiled passes against ATen's operations."""

import itertools

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from mmstepnet.steps import kernels
from mmstepnet.steps.kernels import aten, inductor
from tests.test_steps import backends


@pytest.fixture
def compiled(monkeypatch):
    """A call of it after which every pass must have been compiled."""
    if not inductor.is_available():
        pytest.skip('needs a C++ compiler and a PyTorch that compiles')
    # Graphs of earlier tests count towards a limit.
    torch._dynamo.reset()
    yield inductor, 'cpu'
    assert not inductor._Kernel.broken


@pytest.mark.parametrize('memory_format', backends.FORMATS)
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_equal_aten(compiled, dtype, memory_format):
    backends.check_equal_aten(*compiled, dtype, memory_format, (2, 3, 5, 4))
    backends.check_equal_aten(*compiled, dtype, memory_format, (3, 5, 1, 7))


def test_large_means(compiled):
    backends.check_large_means(*compiled)


def test_whole_step(compiled, monkeypatch):
    backends.check_whole_step(*compiled, monkeypatch)


def test_chosen_by_size(monkeypatch):
    monkeypatch.setattr(inductor, 'is_available', lambda: True)
    monkeypatch.setattr(inductor, 'SMALLEST', 60)
    assert kernels.backend(torch.zeros(1, 3, 5, 4)) is inductor
    assert kernels.backend(torch.zeros(1, 3, 5, 3)) is aten
    monkeypatch.setattr(inductor, 'is_available', lambda: False)
    assert kernels.backend(torch.zeros(1, 3, 5, 4)) is aten


def test_failing_compiler(monkeypatch):
    """A compiler that fails costs a warning and time, no result."""
    monkeypatch.setattr(inductor._Kernel, 'broken', False)

    def fail(graph, inputs):
        raise OSError('no space for objects')

    kernel = inductor._Kernel(lambda x: x + 1)
    kernel.compiled = torch.compile(kernel.function, backend=fail)
    with pytest.warns(UserWarning, match='no space for objects') as said:
        for _ in range(2):
            assert kernel(torch.zeros(2)).tolist() == [1, 1]
    assert len(said) == 1


@pytest.mark.skipif(not inductor.is_available(), reason='does not compile')
def test_one_graph_for_every_caller(monkeypatch):
    """Modes, and what maps are views of, are none of the passes' business."""
    torch._dynamo.reset()
    monkeypatch.setattr(inductor._Kernel, 'broken', False)
    counter = CompileCounter()
    kernel = inductor._Kernel(lambda maps, relu: maps.relu() + 1)
    kernel.compiled = torch.compile(kernel.function, backend=counter,
                                    dynamic=True, fullgraph=True)

    def call(height, width, needs_grad, autocast, grad_mode):
        maps = torch.randn(2, 3, height, width, requires_grad=needs_grad)
        rows = aten.rows(maps)
        with (torch.set_grad_enabled(grad_mode),
              torch.autocast('cpu', torch.bfloat16, enabled=autocast)):
            found = kernel(rows, True)
        torch.testing.assert_close(found, rows.detach().relu() + 1)
        assert not found.requires_grad
    for modes in itertools.product([False, True], repeat=3):
        call(5, 7, *modes)
        call(6, 6, *modes)
    assert counter.frame_count == 1


@pytest.mark.skipif(not inductor.is_available(), reason='does not compile')
def test_more_graphs_than_dynamo_allows(monkeypatch):
    """A call of a further kind runs uncompiled, the compiled ones stay."""
    torch._dynamo.reset()
    monkeypatch.setattr(inductor._Kernel, 'broken', False)
    counter = CompileCounter()
    kernel = inductor._Kernel(lambda x: x + 1)
    kernel.compiled = torch.compile(kernel.function, backend=counter,
                                    dynamic=True, fullgraph=True)
    with torch._dynamo.config.patch(recompile_limit=2):
        for dtype in (torch.float32, torch.float64, torch.bfloat16,
                      torch.float16, torch.float32):
            assert kernel(torch.zeros(2, dtype=dtype)).tolist() == [1, 1]
    assert counter.frame_count == 2
    assert not inductor._Kernel.broken


def test_large_maps_without_memory():
    """Shapes alone, on the device meta, are not for the C++ loops."""
    assert kernels.backend(
        torch.empty(8, 64, 64, 64, device='meta')) is aten
