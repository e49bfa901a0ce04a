import pytest
import torch
from mmengine.utils import ManagerMixin

from mmstepnet.steps import choice


def subclasses(cls):
    for subclass in cls.__subclasses__():
        yield subclass
        yield from subclasses(subclass)


@pytest.fixture(autouse=True)
def small_maps_are_fused(monkeypatch):
    """As large ones are, so that tests of small maps test the fused path."""
    monkeypatch.setattr(choice, 'SMALLEST', 0)


@pytest.fixture(autouse=True)
def isolated():
    """No random number, default scope or logger comes from another test.

    mmengine names loggers and visualizers by the second a runner was made in.
    """
    torch.manual_seed(0)
    yield
    for manager in subclasses(ManagerMixin):
        manager._instance_dict.clear()
