"""Passes over memory, by device; the functions are those of :mod:`.aten`."""

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from torch import Tensor

from . import aten, inductor

__all__ = ['aten', 'backend', 'inductor']


def backend(maps: Tensor) -> ModuleType:
    """Module that holds the passes over memory for such maps."""
    if maps.is_cuda:
        return _triton()
    if (maps.device.type == 'cpu' and maps.numel() >= inductor.SMALLEST
            and inductor.is_available()):
        return inductor
    return aten


@cache
def _triton() -> ModuleType:
    """Triton's kernels where Triton 3 is installed, else ATen's operations."""
    if find_spec('triton') is None or int(
            import_module('triton').__version__.split('.')[0]) < 3:
        return aten
    return import_module('mmstepnet.steps.kernels.triton_kernels')
