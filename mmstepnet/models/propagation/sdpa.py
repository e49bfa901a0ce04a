"""Softmax propagation with a bias a source, over PyTorch's fused kernels.

Nothing here forms an N x M matrix where the kernels do not.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

# Half precision keeps norms in units of this power of two, so that float16
# reaches 65504 times as far.
HALF_UNIT = 256.0


def compute_dtype(like: Tensor) -> torch.dtype:
    """The dtype in which autocast would run the kernel, else the tensor's."""
    kind = like.device.type
    if kind == 'cpu':
        enabled = torch.is_autocast_cpu_enabled()
        dtype = torch.get_autocast_cpu_dtype
    else:
        enabled = torch.is_autocast_enabled()
        dtype = torch.get_autocast_gpu_dtype
    if enabled and like.dtype != torch.float64:
        return dtype()
    return like.dtype


def propagate(q: Tensor,
              k: Tensor,
              v: Tensor,
              scale: float,
              source_bias: Tensor | None = None,
              mask: Tensor | None = None,
              is_causal: bool = False) -> Tensor:
    r"""Compute softmax over j of ``scale * (q_i . k_j + bias_j)``, times v.

    Two exact forms. Without gradients the bias is added to the scores by the
    kernel. With gradients, for which PyTorch's kernels keep a bias fixed, or
    beside another mask or ``is_causal``, the bias is one more coordinate of
    k (in half precision two: high and low part) that meets a constant in q;
    v is padded to the same width, because the kernels want equal ones.

    Args:
        q (Tensor): Receivers (..., N, d).
        k (Tensor): Sources (..., M, d).
        v (Tensor): What the sources send (..., M, e).
        scale (float): Factor of the scores.
        source_bias (Tensor, optional): Float32 or better, (..., M).
        mask (Tensor, optional): Dense, from :func:`check_mask`.
        is_causal (bool): Defaults to False.

    Returns:
        Tensor: (..., N, e).
    """
    width, lead = v.shape[-1], q.shape[:-2]
    only_sources = mask is not None and mask.shape[-2] == 1
    if only_sources and (source_bias is not None or is_causal):
        source_bias = _shut(source_bias, mask, k)
        mask = None
    if source_bias is not None:
        grad = torch.is_grad_enabled() and any(
            t.requires_grad for t in (q, k, v, source_bias))
        if grad or is_causal or mask is not None:
            q, k = _append(q, k, source_bias)
        else:
            mask = (scale * source_bias).to(q.dtype).unsqueeze(-2)
    widest = max(q.shape[-1], width)
    q, k, v = (_pad(t, widest) for t in (q, k, v))
    if mask is not None:
        mask = _four(mask.expand(*lead, *mask.shape[-2:]), lead)
    with torch.autocast(q.device.type, enabled=False):
        out = F.scaled_dot_product_attention(
            _four(q, lead),
            _four(k, lead),
            _four(v, lead),
            attn_mask=mask,
            is_causal=is_causal,
            scale=scale)
    return out[..., :width].reshape(*lead, q.shape[-2], width)


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


def _shut(bias: Tensor | None, mask: Tensor, k: Tensor) -> Tensor:
    """Give sources that the mask shuts out a bias no weight survives.

    Finite, because a kernel's backward multiplies it by a weight of zero.
    """
    mask = mask.expand(*k.shape[:-2], 1, k.shape[-2]).squeeze(-2)
    if bias is None:
        bias = k.new_zeros(mask.shape, dtype=torch.promote_types(
            k.dtype, torch.float32))
    lowest = HALF_UNIT * torch.finfo(k.dtype).min if is_half(
        k.dtype) else -1e30
    return bias.masked_fill(~mask, lowest)


def is_half(dtype: torch.dtype) -> bool:
    """Whether norms need two coordinates of this dtype."""
    return dtype in (torch.float16, torch.bfloat16)


def _append(q: Tensor, k: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    if not is_half(k.dtype):
        parts, unit = [bias.to(k.dtype)], 1.0
    else:
        unit = HALF_UNIT
        bias = bias / unit
        lowest = torch.finfo(k.dtype).min
        high = bias.clamp(min=lowest).to(k.dtype)
        parts = [high, (bias - high).clamp(min=lowest).to(k.dtype)]
    k = torch.cat([k, torch.stack(parts, -1)], -1)
    ones = q.new_full((), unit).expand(*q.shape[:-1], len(parts))
    return torch.cat([q, ones], -1), k
