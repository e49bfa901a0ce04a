import pytest

from mmstepnet.steps import residual


@pytest.fixture
def calls(monkeypatch):
    """Count the calls that took the fused path."""
    count = []
    fused = residual.fused_residual_step

    def spy(*args, **kwargs):
        count.append(1)
        return fused(*args, **kwargs)

    monkeypatch.setattr(residual, 'fused_residual_step', spy)
    return count
