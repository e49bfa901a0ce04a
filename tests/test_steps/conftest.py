import pytest

from mmstepnet.steps.tail.function import Tail
from mmstepnet.steps.tail.scaled import Scaled


def spy(monkeypatch, function):
    """Count the calls of an autograd function."""
    count = []
    apply = function.apply

    def counted(*args):
        count.append(1)
        return apply(*args)

    monkeypatch.setattr(function, 'apply', counted)
    return count


@pytest.fixture
def calls(monkeypatch):
    """Count the steps that took the fused path with their norm."""
    return spy(monkeypatch, Tail)


@pytest.fixture
def scalings(monkeypatch):
    """Count the steps at branches' ends that were taken by hand."""
    return spy(monkeypatch, Scaled)
