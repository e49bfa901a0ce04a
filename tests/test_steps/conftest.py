import pytest

from mmstepnet.steps.tail.function import Tail


@pytest.fixture
def calls(monkeypatch):
    """Count the steps that took the fused path."""
    count = []
    apply = Tail.apply

    def spy(*args):
        count.append(1)
        return apply(*args)

    monkeypatch.setattr(Tail, 'apply', spy)
    return count
