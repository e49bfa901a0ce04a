"""Training in bfloat16, on CPUs too."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from mmengine.optim import OptimWrapper
from torch.overrides import TorchFunctionMode

from mmstepnet.registry import OPTIM_WRAPPERS
from mmstepnet.torch_version import compute_dtype


@OPTIM_WRAPPERS.register_module()
class AutocastOptimWrapper(OptimWrapper):
    """Compute the loss in bfloat16 where that is safe; weights stay float32.

    mmengine's ``AmpOptimWrapper`` scales losses for float16 and refuses
    CPUs. bfloat16 has the exponents of float32, so it needs no scaling, and
    recent CPUs multiply matrices in it two to three times faster. On others
    :class:`Float32Products` keeps the numbers and takes float32's time.

    Args:
        **kwargs: See :class:`mmengine.optim.OptimWrapper`.
    """

    @contextmanager
    def optim_context(self, model: nn.Module) -> Iterator[None]:
        """Autocast around the forward pass."""
        device = next(model.parameters()).device.type
        slow = device == 'cpu' and not multiplies_bfloat16()
        with (super().optim_context(model),
              torch.autocast(device, dtype=torch.bfloat16),
              Float32Products() if slow else nullcontext()):
            yield


def multiplies_bfloat16() -> bool:
    """Whether PyTorch has fast products of bfloat16 for this CPU."""
    return (torch.backends.mkldnn.is_available()
            and torch.ops.mkldnn._is_mkldnn_bf16_supported())


class Float32Products(TorchFunctionMode):
    """Multiply values rounded to bfloat16 in float32 arithmetic.

    Without instructions for bfloat16 PyTorch's convolutions and linear maps
    of it take ten times as long as those of float32 or longer. The product
    of two bfloat16 values is exact in float32; both forms add up in float32
    and round the sum, so that only the order of additions differs.
    """

    def __torch_function__(self,
                           func: Any,
                           types: Sequence[type],
                           args: tuple = (),
                           kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if func not in (torch.conv2d, F.linear):
            return func(*args, **kwargs)
        like = args[0] if args else kwargs['input']
        if compute_dtype(like) != torch.bfloat16:
            return func(*args, **kwargs)
        with torch.autocast('cpu', enabled=False):
            args = [_rounded(value) for value in args]
            kwargs = {key: _rounded(value) for key, value in kwargs.items()}
            return func(*args, **kwargs).bfloat16()


def _rounded(value: Any) -> Any:
    return (value.bfloat16().float()
            if isinstance(value, torch.Tensor) else value)
