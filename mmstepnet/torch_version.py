"""Differences between versions of PyTorch; the only place that asks.

Versions compare as ``torch.__version__ >= '2.6'``, number by number.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch._C._functorch as functorch
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad


def is_compiling() -> bool:
    """Whether a compiler or exporter is reading the code."""
    if hasattr(torch.compiler, 'is_compiling'):
        return torch.compiler.is_compiling()
    return torch._dynamo.is_compiling()  # torch < 2.3


def is_exporting() -> bool:
    """Whether the code is read for a graph that other programs will run.

    PyTorch before 2.7 cannot tell an exporter from a compiler: both are.
    """
    exporting = getattr(torch.compiler, 'is_exporting', is_compiling)
    return torch.jit.is_tracing() or exporting()


def is_transformed() -> bool:
    """Whether the code is traced, or differentiated in another way.

    By torch.jit, ``make_fx``, functorch, or in forward mode. Not where a
    compiler reads it, which cannot ask.
    """
    return not is_compiling() and bool(
        torch.jit.is_tracing()
        or torch._C._are_functorch_transforms_active()
        or _MODES
        and torch._C._get_dispatch_mode(_MODES.PROXY) is not None
        or forward_ad._current_level >= 0
    )


_MODES = getattr(torch._C, '_TorchDispatchModeKey', None)  # torch >= 2.2


def is_backward() -> bool:
    """Whether autograd runs; a forward pass in it repeats a checkpoint's."""
    return torch._C._current_graph_task_id() != -1


def is_batched(tensor: torch.Tensor) -> bool:
    """Whether it stands for several tensors, as under ``is_grads_batched``."""
    legacy = getattr(functorch, 'is_legacy_batchedtensor', None)  # >= 2.2
    return (
        functorch.is_batchedtensor(tensor)
        or legacy is not None
        and legacy(tensor)
    )


def onnx_arguments(axes: Sequence[str | None]) -> dict:
    """Arguments that tell ``torch.onnx.export`` the free axes of its input.

    Args:
        axes (Sequence): For each axis its name, None where it is fixed.
    """
    free = {i: name for i, name in enumerate(axes) if name is not None}
    if torch.__version__ < '2.6':  # by tracing
        return dict(opset_version=17, dynamic_axes=dict(images=free))
    return dict(
        dynamo=True, external_data=False, verbose=False, dynamic_shapes=(free,)
    )


def has_values(tensor: torch.Tensor) -> bool:
    """Whether a tensor has values; fake ones and those on meta have none."""
    return not (isinstance(tensor, FakeTensor) or tensor.is_meta)


def without_autocast(device_type: str) -> AbstractContextManager:
    """Switch autocast off; the meta device has none."""
    if device_type == 'meta':
        return nullcontext()
    return torch.autocast(device_type, enabled=False)


def compute_dtype(like: torch.Tensor) -> torch.dtype:
    """The dtype in which autocast would multiply, else the tensor's."""
    kind = like.device.type
    dtype: Any
    if kind == 'meta':
        return like.dtype
    if hasattr(torch, 'get_autocast_dtype'):
        enabled = torch.is_autocast_enabled(kind)
        dtype = torch.get_autocast_dtype(kind) if enabled else None
    else:  # torch < 2.4
        on_cpu = kind == 'cpu'
        enabled = (
            torch.is_autocast_cpu_enabled()
            if on_cpu
            else torch.is_autocast_enabled()
        )
        dtype = (
            torch.get_autocast_cpu_dtype()
            if on_cpu
            else torch.get_autocast_gpu_dtype()
        )
    if enabled and like.dtype != torch.float64:
        return dtype
    return like.dtype
