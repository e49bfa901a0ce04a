"""Statistics of the attentions' batch norms, from data, before training."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn as nn
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from mmstepnet.attentions import Attention
from mmstepnet.tracing import hooked, in_mode, uncompiled

from .examples import run_batch


def calibrate(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    forward: Callable[[nn.Module, Any], Any] | None = None,
) -> int:
    """Give new attentions' BNs their running statistics.

    Where BNs stay in eval mode, as in detection, an attention that was put
    into a pretrained network would keep mean 0 and variance 1 for ever. The
    batches are run without gradients in eval mode; mean and variance of a BN
    are those of all that it was given, over all batches and processes. That
    is exact where gates do not change yet what later ones see, as with
    ``init_step=1.0``.

    BNs that have seen data (``num_batches_tracked``) are left alone, and
    those of frozen attentions that do not run. A frozen one that does run
    gets statistics, too, as in the teacher of a semi-supervised detector. A
    channel without spread keeps its variance.

    Args:
        model (nn.Module): A model with steps.
        batches (Iterable): What the model is called with: tensors, tuples of
            its arguments, or dicts of these by name; or pairs of images and
            labels, of which a model of one argument is given the images.
            Some fifty are enough. Each process gives its own.
        forward (Callable, optional): ``forward(model, batch)`` runs the model
            instead, on batches of any kind. Defaults to None.

    Returns:
        int: Number of BNs that got statistics.

    Raises:
        ValueError: They saw fewer than two vectors, NaN or infinity, or the
            same value for every image, as SRM without ``init_step``. All BNs
            are left as they were.

    Example:
        >>> import torch
        >>> from torchvision.models import resnet18
        >>> import mmstepnet
        >>> model = resnet18()
        >>> names = mmstepnet.insert_steps(model)
        >>> batches = [torch.rand(4, 3, 64, 64) for _ in range(3)]
        >>> mmstepnet.calibrate(model, batches)
        5
    """
    norms: dict[Any, bool] = {}  # and whether its gate is trained
    for attention in model.modules():
        if not isinstance(attention, Attention):
            continue
        is_trained = any(p.requires_grad for p in attention.parameters())
        for norm in attention.modules():
            if isinstance(norm, _BatchNorm) and norm.num_batches_tracked == 0:
                norms[norm] = is_trained
    if not norms:
        return 0
    # Count, sum and sum of squares, in one tensor for one all_reduce; in
    # float64 on the CPU, because not all devices have it.
    sums = {
        norm: torch.zeros(2 * norm.num_features + 1, dtype=torch.float64)
        for norm in norms
    }

    def add(norm: nn.Module, inputs: tuple[Tensor]) -> None:
        values = inputs[0].detach().cpu().double().transpose(0, 1).flatten(1)
        sums[norm] += torch.cat(
            [
                values.new_tensor([values.shape[1]]),
                values.sum(1),
                values.square().sum(1),
            ]
        )

    # Compiled code passes hooks by.
    handles = [
        uncompiled.enter(),
        *(norm.register_forward_pre_hook(add) for norm in norms),
    ]
    seen = 0
    with hooked(handles), in_mode(model, False), torch.no_grad():
        for batch in batches:
            (forward or run_batch)(model, batch)
            seen += 1
    if dist.is_available() and dist.is_initialized():
        for norm in norms:
            over_all = sums[norm].to(norm.running_mean.device)
            dist.all_reduce(over_all)
            sums[norm] = over_all.cpu()
    # A frozen one that does not run here, as in a teacher, needs none.
    found = {
        norm: _statistics(norm, sums[norm])
        for norm, is_trained in norms.items()
        if is_trained or sums[norm][0] > 0
    }
    for norm, (mean, variance) in found.items():
        norm.running_mean.copy_(mean)
        norm.running_var.copy_(variance)
        norm.num_batches_tracked.fill_(seen)
    return len(found)


def _statistics(norm: Any, sums: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance."""
    count = sums[0]
    total, squares = sums[1:].chunk(2)
    if count < 2:
        raise ValueError(
            f'a BN of an attention saw {int(count)} pooled '
            f'vectors and needs at least 2: are there any data?'
        )
    if not sums.isfinite().all():
        raise ValueError(
            'an attention was given NaN or infinite features; '
            'look at the images and the weights'
        )
    mean = total / count
    variance = (squares - count * mean.square()) / (count - 1)
    # Below it is what rounding to float32 makes of one value.
    spread = variance > torch.finfo(torch.float32).eps ** 2 * mean.square()
    if not spread.any():
        raise ValueError(
            'an attention gives its BN the same value for every image, from '
            'which no variance can be set; give the attention init_step=1.0, '
            'with which it starts from what it sees'
        )
    return mean, torch.where(spread, variance, norm.running_var.cpu())
