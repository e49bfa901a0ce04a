"""2-norms of features, sample by sample, in few passes over memory.

Inputs are read in float32 or better. Squares are summed in float32 over some
thousand values at a time and in float64 above that, so that the relative
error stays near 1e-7 for maps of any size. Results are float64, (N,). Callers
switch gradients off.
"""

import torch
from torch import Tensor

ROW = 1024
"""Rows of squares are at least so long, so that PyTorch works in vectors."""

LONGEST_ROW = 1 << 14
"""Longer rows are summed in float64, for float32 would lose digits."""


def norm(x: Tensor) -> Tensor:
    """2-norm of each sample of ``x``, (N, ...) -> (N,)."""
    (rows,) = _rows(x)
    return _of_samples(_row_norms(rows), len(x))


def norm_and_distance(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """2-norms of each sample of ``x`` and of ``x - y``, in one pass.

    Args:
        x (Tensor): States, (N, ...).
        y (Tensor): States, as large.

    Returns:
        tuple[Tensor, Tensor]: Norms, both (N,).
    """
    x_rows, y_rows = _rows(x, y)
    return (
        _of_samples(_row_norms(x_rows), len(x)),
        _of_samples(_row_norms(x_rows - y_rows), len(x)),
    )


def branch_norms(
    f: Tensor, step: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """‖f‖, ‖f ⊗ Δt‖ and the mean of Δt, sample by sample.

    Args:
        f (Tensor): Branches f(x_t), (N, ...).
        step (Tensor, optional): Attention values Δt, broadcastable to ``f``.
            None is 1.

    Returns:
        tuple[Tensor, Tensor, Tensor]: Each (N,).
    """
    if step is None:
        f_norm = norm(f)
        return f_norm, f_norm, torch.ones_like(f_norm)
    step = step.detach()[(None,) * (f.dim() - step.dim())]
    step = step.expand(len(f), *step.shape[1:])
    mean = step.flatten(1).double().mean(1)
    f = _wide(f)
    step = _wide(step)
    shared = [d for d in range(1, f.dim()) if step.shape[d] == 1]
    innermost = list(range(f.dim() - len(shared), f.dim()))
    if not shared or shared != innermost or not f.is_contiguous():
        return norm(f), norm(f * step), mean
    # ‖f ⊗ Δt‖² = Σ_c Δt_c² ‖f_c‖²: one pass, and nothing as large as f.
    long = f.flatten(shared[0]).shape[-1] > LONGEST_ROW
    norms = torch.linalg.vector_norm(
        f, dim=shared, keepdim=True, dtype=torch.float64 if long else None
    )
    return (
        _of_samples(norms.reshape(-1), len(f)),
        _of_samples((norms * step).reshape(-1), len(f)),
        mean,
    )


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _rows(*tensors: Tensor) -> list[Tensor]:
    """View equal-shaped (N, ...) as (N * k, m), in one order of elements.

    The order is that of the first one's memory: channels_last maps are not
    copied.
    """
    first = tensors[0]
    length = first.numel() // first.shape[0]
    while length % 2 == 0 and length >= 2 * ROW:
        length //= 2
    if not first.is_contiguous():
        order = sorted(range(1, first.dim()), key=first.stride, reverse=True)
        tensors = tuple(x.permute(0, *order) for x in tensors)
    return [_wide(x).reshape(-1, length) for x in tensors]


def _row_norms(rows: Tensor) -> Tensor:
    dtype = torch.float64 if rows.shape[1] > LONGEST_ROW else None
    return torch.linalg.vector_norm(rows, dim=1, dtype=dtype)


def _of_samples(norms: Tensor, samples: int) -> Tensor:
    return torch.linalg.vector_norm(
        norms.view(samples, -1), dim=1, dtype=torch.float64
    )
