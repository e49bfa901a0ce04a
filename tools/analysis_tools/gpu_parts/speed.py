"""Whole networks: training and inference over plain ones."""

from collections.abc import Callable, Iterator
from functools import partial

import torch

from mmstepnet import steps

from .common import (
    Check,
    Outcome,
    Setting,
    detector,
    fused_tails,
    ratio,
    resnet,
    seconds,
)

SIZES = (256, 32, 2)
"""Images of a step."""

DTYPES = dict(bfloat16=torch.bfloat16, float32=None)
PEERS = dict(plain=None, SE='SE', reference='StepNet', StepNet='StepNet')


def checks(setting: Setting) -> Iterator[Check]:
    """Checks of this part."""
    sizes = (2, ) if setting.quick else SIZES
    for what, run in (('ResNet-50', _classification),
                      ('Faster R-CNN R50', _detection)):
        for images in sizes if run is _classification else sizes[-1:]:
            for dtype in DTYPES:
                for compiled in (False, ) if setting.quick or (
                        run is _detection) else (False, True):
                    for training in (True, False):
                        yield ', '.join([
                            what, 'training' if training else 'inference',
                            f'{images} images', dtype,
                            'compiled' if compiled else 'eager']), partial(
                                _compare, setting, run, images, dtype,
                                compiled, training)


def _compare(setting: Setting, run: Callable, images: int, dtype: str,
             compiled: bool, training: bool) -> Outcome:
    contestants = {}
    for name, attention in PEERS.items():
        if name == 'reference' and compiled:
            continue  # what a compiled network is in any case
        take = run(setting, attention, images, compiled, training)
        contestants[name] = partial(
            _with, take, name != 'reference', setting.device, DTYPES[dtype])
    on_cuda = setting.device == 'cuda'
    with fused_tails() if on_cuda and not compiled else steps.fused(True):
        found = seconds(setting, contestants, 2 if setting.quick else 12,
                        1 if setting.quick else 4)
    ratios = {name: ratio(found, name, 'plain') for name in contestants}
    text = ', '.join(f'{k} {v:.3f}' for k, v in ratios.items()
                     if k != 'plain')
    # Nothing is faster than no attention but by what the fusion saves.
    target = 1.0 if images >= 256 and not compiled else ratios['SE']
    return Outcome(text, '≤ 1.000' if target == 1 else '≤ SE',
                   ratios['StepNet'] <= target)


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
    forward = torch.compile(model) if compiled else model
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
