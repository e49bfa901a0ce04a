"""Whole networks over plain ones, and metric-attention."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn as nn

from mmstepnet import steps
from mmstepnet.propagation import metric_propagation

from .common import (
    Check,
    Outcome,
    Setting,
    detector,
    fused_tails,
    listed,
    ratios,
    resnet,
    seconds,
)

SIZES = (256, 32, 8)
"""Images of a step; a detector takes two."""

DTYPES = dict(bfloat16=torch.bfloat16, float32=None)
PEERS = dict(plain=None, SE='SE', reference='StepNet', StepNet='StepNet')


def checks(setting: Setting) -> Iterator[Check]:
    """Checks of this part."""
    yield from _networks(setting, False)
    for tokens in (64, ) if setting.quick else (8192, 16384):
        for width in (62, 64):
            yield (f'metric-attention over dot product, {tokens} tokens, '
                   f'width {width}', partial(_metric, setting, tokens, width))
    yield from _networks(setting, True)  # these take the longest


def _networks(setting: Setting, compiled: bool) -> Iterator[Check]:
    rows = [('ResNet-50', _classification, images)
            for images in ((2, ) if setting.quick else SIZES)]
    if not compiled:
        rows.append(('Faster R-CNN R50', _detection, 2))
    for what, make, images in rows:
        for dtype in DTYPES:
            for training in (True, False):
                yield ', '.join([
                    what, 'training' if training else 'inference',
                    f'{images} images', dtype,
                    'compiled' if compiled else 'eager']), partial(
                        _compare, setting, make, images, dtype, compiled,
                        training)


def _compare(setting: Setting, make: Callable, images: int, dtype: str,
             compiled: bool, training: bool) -> Outcome:
    torch._dynamo.reset()  # networks of other rows count to its limit, too
    contestants = {}
    for name, attention in PEERS.items():
        if name == 'reference' and compiled:
            continue  # what a compiled network is in any case
        take = make(setting, attention, images, compiled, training)
        contestants[name] = partial(
            _with, take, name == 'StepNet', setting.device, DTYPES[dtype])
    with fused_tails(0 if compiled else None):
        found = ratios(seconds(setting, contestants, 12, 4))
    # Nothing is faster than no attention but by what the fusion saves.
    target = 1.0 if images >= 256 and not compiled else found['SE']
    return Outcome(listed(found, '.3f'),
                   '≤ 1.000' if target == 1 else '≤ SE',
                   found['StepNet'] <= target)


def _with(take: Callable, fused: bool, device: str,
          dtype: torch.dtype | None) -> None:
    with steps.fused(fused), torch.autocast(device, dtype,
                                            enabled=dtype is not None):
        take()


def _classification(setting: Setting, attention: str | None, images: int,
                    compiled: bool, training: bool) -> Callable[[], None]:
    model = resnet(attention).to(
        setting.device, memory_format=torch.channels_last).train(training)
    side = 64 if setting.quick else 224
    x = torch.randn(images, 3, side, side, device=setting.device).contiguous(
        memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    # With the whole graph or an error: not in parts, and not uncompiled from
    # Dynamo's limit on.
    forward = torch.compile(
        model, fullgraph=True,
        backend='eager' if setting.quick else 'inductor',
    ) if compiled else model
    return partial(_step, lambda: forward(x).float().square().mean(),
                   optimizer, training)


def _detection(setting: Setting, attention: str | None, images: int,
               compiled: bool, training: bool) -> Callable[[], None]:
    del compiled
    model = detector(attention).to(setting.device).train(training)
    side = 96 if setting.quick else 800
    x = list(torch.rand(images, 3, side, side, device=setting.device))
    box = torch.tensor([[8.0, 8.0, 64.0, 64.0]], device=setting.device)
    targets = [dict(boxes=box, labels=torch.ones(
        1, dtype=torch.long, device=setting.device)) for _ in x]
    optimizer = torch.optim.SGD(
        [p for p in model.parameters() if p.requires_grad], lr=1e-4)

    def loss():
        return sum(model(x, targets).values()) if training else model(x)
    return partial(_step, loss, optimizer, training)


def _step(loss: Callable, optimizer: torch.optim.Optimizer,
          training: bool) -> None:
    if not training:
        with torch.no_grad():
            loss()
        return
    optimizer.zero_grad()
    loss().backward()
    optimizer.step()


def _metric(setting: Setting, tokens: int, width: int) -> Outcome:
    q, k, v = (torch.randn(1, 8, tokens, width, device=setting.device,
                           dtype=torch.bfloat16, requires_grad=True)
               for _ in range(3))

    def gradients(attend):
        torch.autograd.grad(attend(q, k, v).sum(), [q, k, v])
    found = ratios(seconds(setting, dict(
        dot=partial(gradients, nn.functional.scaled_dot_product_attention),
        metric=partial(gradients, metric_propagation)), 10, 2), 'dot')
    return Outcome(f'{found["metric"]:.2f}')
