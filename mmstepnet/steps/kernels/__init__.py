"""Passes over memory of a residual step: :mod:`.plain`, on CUDA Triton's."""

import warnings
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

import torch
from torch import Tensor

from . import plain

__all__ = ['backend', 'compiles', 'plain']


def backend(maps: Tensor) -> ModuleType | None:
    """Module that holds the passes over such maps; None where none pays.

    On a CPU the passes pay where they are compiled, on CUDA as Triton's
    kernels. The functions are those of :mod:`.plain`.
    """
    if maps.is_cuda:
        return _triton()
    return plain if maps.device.type == 'cpu' and compiles('cpu') else None


@cache
def compiles(device: str) -> bool:
    """Whether PyTorch is expected to compile for a device type here.

    It needs PyTorch 2.6, and a C++ compiler for the CPU.
    """
    if torch.__version__ < (2, 6):
        return False
    if device == 'cpu':
        try:
            from torch._inductor.cpp_builder import get_cpp_compiler
            get_cpp_compiler()
        except (ImportError, RuntimeError):  # none, or an unknown PyTorch
            return False
    return True


@cache
def _triton() -> ModuleType | None:
    """Triton's kernels where Triton 3 is installed and launches one."""
    if find_spec('triton') is None or int(
            import_module('triton').__version__.split('.')[0]) < 3:
        return None
    kernels = import_module('mmstepnet.steps.kernels.triton_kernels')
    try:
        kernels.total(torch.zeros(1, 1, 1, 1, device='cuda'))
    except Exception as error:  # a driver, a compiler or headers are missing
        warnings.warn(
            'the residual step takes the plain path and is slower, because '
            f'Triton failed: {error}', stacklevel=2)
        return None
    return kernels
