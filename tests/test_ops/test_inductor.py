"""Compiled passes against ATen's operations."""

import pytest
import torch

from mmstepnet.ops import aten, inductor, residual

from . import backends


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
    assert residual.backend(torch.zeros(1, 3, 5, 4)) is inductor
    assert residual.backend(torch.zeros(1, 3, 5, 3)) is aten
    monkeypatch.setattr(inductor, 'is_available', lambda: False)
    assert residual.backend(torch.zeros(1, 3, 5, 4)) is aten


def test_failing_compiler(monkeypatch):
    """A compiler that fails costs a warning and time, no result."""
    said = []
    monkeypatch.setattr(inductor, 'print_log',
                        lambda message, **kwargs: said.append(message))
    monkeypatch.setattr(inductor._Kernel, 'broken', False)

    def fail(graph, inputs):
        raise OSError('no space for objects')

    kernel = inductor._Kernel(lambda x: x + 1)
    kernel.compiled = torch.compile(kernel.function, backend=fail)
    for _ in range(2):
        assert kernel(torch.zeros(2)).tolist() == [1, 1]
    assert len(said) == 1 and 'no space for objects' in said[0]
