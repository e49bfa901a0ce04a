"""Which numbers sums are formed in: float32 or better."""

import torch
from torch import Tensor


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Dtype of sums over values of a dtype: float64 for it, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def full_precision(x: Tensor) -> Tensor:
    """Bring half precision to float32; leave float32 and float64 alone."""
    return x.to(accumulation_dtype(x.dtype))
