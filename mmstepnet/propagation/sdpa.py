"""Softmax propagation over PyTorch's fused kernels, by distances too.

Nothing here forms an N x M matrix where the kernels do not.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from mmstepnet.precision import full_precision
from mmstepnet.torch_version import is_exporting, is_transformed

from .masks import informed_rows

# Coordinates of k, (..., M), and the constants that they meet in q.
Columns = list[tuple[Tensor, Tensor | float]]

CPU_TAKES_MASK = torch.__version__ >= '2.3'
"""Before, a mask beside PyTorch's kernel for CPUs costs the N x M matrix."""

HALF = (torch.float16, torch.bfloat16)
CPU_VECTOR = 16
"""With fewer sources PyTorch's kernel for CPUs makes 0 of NaN scores."""

SHUT_SCORES = {
    torch.float64: 1e300,
    torch.float32: 1e30,
    torch.bfloat16: 1e30,
    torch.float16: 1e30,
}
"""No weight survives its negative; finite, for kernels that multiply it."""


def propagate(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    centre: Tensor | None = None,
    mask: Tensor | None = None,
    is_causal: bool = False,
) -> Tensor:
    r"""Compute softmax over j of ``scale * q_i . k_j``, times v.

    With ``centre`` the softmax of ``-scale / 2 * |q_i - k_j|^2``: q and k are
    shifted by it, and ``bias_j = -|k_j|^2 / 2`` joins the dot products. Two
    exact forms. In the first the kernel adds the bias to the scores, as an
    additive mask. In the second the bias is one more coordinate of k, which
    meets a constant in q, and v is padded to the same width, because the
    kernels want equal ones. The second is taken

    - where the bias needs a gradient, for which PyTorch's kernels would form
      the N x M matrix; under functorch and torch.jit this cannot be known;
    - beside ``is_causal`` or another mask;
    - in half precision, to which the kernels would round the bias;
    - on CPUs before PyTorch 2.3.

    Args:
        q (Tensor): Receivers (..., N, d).
        k (Tensor): Sources (..., M, d).
        v (Tensor): What the sources send (..., M, e), of the dtype in which
            to compute.
        scale (float): Factor of the scores.
        centre (Tensor, optional): A point near the sources, (..., 1, d).
            Defaults to None, dot products.
        mask (Tensor, optional): Dense, from :func:`check_mask`.
        is_causal (bool): Receivers that it leaves no source beside a mask of
            sources get 0. Defaults to False.

    Returns:
        Tensor: (..., N, e).

    Raises:
        ValueError: In float16 ``scale`` is too small for a key padding mask
            to close.
    """
    width, lead = v.shape[-1], q.shape[:-2]
    columns = []
    of_sources = mask if mask is not None and mask.shape[-2] == 1 else None
    informed = (
        informed_rows(of_sources, q.shape[-2])
        if of_sources is not None and is_causal
        else None
    )
    no_mask = is_causal or (q.device.type == 'cpu' and not CPU_TAKES_MASK)
    # Rebound as they change: what is no longer needed is freed before the
    # kernel runs.
    if centre is not None:
        q, k = q - centre, k - centre
        if of_sources is not None:  # what nobody sees may be anywhere
            k = k.masked_fill(~of_sources.transpose(-2, -1), 0)
    q, k = q.to(v.dtype), k.to(v.dtype)
    if centre is not None:
        # Of the points as the kernel will see them.
        bias = full_precision(k).square().sum(-1) / -2
        if (
            bias.requires_grad
            or no_mask
            or k.dtype in HALF
            or is_transformed()
            or mask is not of_sources
        ):
            columns = _columns(bias, k.dtype)
        else:
            bias = scale * bias.unsqueeze(-2)
            mask = (
                bias if mask is None else bias.masked_fill(~mask, -torch.inf)
            )
    # Kernels take no mask beside is_causal, and the fastest none at all.
    if of_sources is not None and (columns or no_mask):
        columns = _shut(columns, of_sources, k, scale)
        mask = None
    elif mask is not None and is_causal:
        mask = mask.expand(*mask.shape[:-2], q.shape[-2], k.shape[-2]).tril()
        is_causal = False
    if columns:
        q, k = _append(q, k, columns)
    widest = max(q.shape[-1], width)
    if q.device.type != 'cpu' and columns:
        widest = -(-widest // 8) * 8  # others' kernels want aligned rows
    q, k, v = (_pad(t, widest) for t in (q, k, v))
    if mask is not None:
        mask = _four(mask.expand(*lead, *mask.shape[-2:]), lead)
    out = F.scaled_dot_product_attention(
        _four(q, lead),
        _four(k, lead),
        _four(v, lead),
        attn_mask=mask,
        is_causal=is_causal,
        scale=scale,
    )
    out = out[..., :width].reshape(*lead, q.shape[-2], width)
    # Zeros, or NaN where there is something to be seen. An exported graph
    # cannot ask how many sources there are.
    if q.device.type == 'cpu' and (is_exporting() or k.shape[-2] < CPU_VECTOR):
        out = (
            out
            + (0 * q).sum(-1, keepdim=True)
            + (0 * k).sum((-2, -1), keepdim=True)
        )
    if informed is not None:
        out = out.masked_fill(~informed.unsqueeze(-1), 0)
    return out


def _four(x: Tensor, lead: torch.Size) -> Tensor:
    """The kernels take four dimensions and fall back on others."""
    shape = x.shape[-2:]
    if len(lead) == 2:
        return x
    if len(lead) > 2:
        return x.reshape(-1, lead[-1], *shape)
    return x.reshape(*(1, 1, *lead)[-2:], *shape)


def _pad(x: Tensor, width: int) -> Tensor:
    return F.pad(x, (0, width - x.shape[-1])) if x.shape[-1] < width else x


def _columns(bias: Tensor, dtype: torch.dtype) -> Columns:
    """Take the bias apart into coordinates of k and what they meet in q.

    Half precision takes two, a high and a low part. Float16, whose range is
    small, keeps them in units of a power of two in which the largest fits;
    beyond squared norms of 4e9 none does, and sources count as that far.
    """
    if dtype not in HALF:
        return [(bias, 1.0)]
    unit = bias.new_ones(())
    if dtype == torch.float16:
        largest = bias.detach().abs().amax(-1, keepdim=True) / 2**15
        unit = largest.log2().ceil().clamp(0, 15).exp2()
        bias = bias.clamp(min=-torch.finfo(dtype).max * 2**15)
    bias = bias / unit
    high = bias.to(dtype)
    return [(high, unit), (bias - high, unit)]


def _shut(columns: Columns, mask: Tensor, k: Tensor, scale: float) -> Columns:
    """Give sources that the mask shuts out a bias no weight survives."""
    shut = ~mask.expand(*k.shape[:-2], 1, k.shape[-2]).squeeze(-2)
    meets = 2.0**15 if k.dtype in HALF else 1.0
    lowest = -min(
        SHUT_SCORES[k.dtype] / scale / meets, torch.finfo(k.dtype).max / 4
    )
    if -lowest * meets * scale < 100:
        raise ValueError(
            f'{k.dtype} cannot close a key padding mask at a factor of the '
            f'scores of {scale:g}; take a smaller eps, bfloat16 or float32'
        )
    if columns and k.dtype not in HALF:
        ((bias, one),) = columns
        return [(bias.masked_fill(shut, lowest), one)]
    closed = k.new_zeros(()).masked_fill(shut, lowest)
    return [*columns, (closed, meets)]


def _append(q: Tensor, k: Tensor, columns: Columns) -> tuple[Tensor, Tensor]:
    sources = torch.stack([column.to(k.dtype) for column, _ in columns], -1)
    meets = torch.stack(
        [
            (q.new_ones(()) * value).to(q.dtype).expand(q.shape[:-1])
            for _, value in columns
        ],
        -1,
    )
    return torch.cat([q, meets], -1), torch.cat([k, sources], -1)
