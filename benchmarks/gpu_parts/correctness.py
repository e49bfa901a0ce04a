"""Values and gradients of the fused step."""

import copy
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
import torch.nn as nn
from torch import Tensor

from mmstepnet import steps
from mmstepnet.attentions import FoldedStepNet
from mmstepnet.steps.tail import dispatch

from ..tails import SHAPES
from .common import (
    FORMATS,
    Check,
    Outcome,
    Setting,
    error,
    fused_tails,
    maps,
    network_gradients,
    resnet,
    tail,
)

ODD = ((4, 48, 80, 80), (5, 67, 33, 31), (4, 64, 1000, 1))
LIMITS = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
"""Relative error of outputs and gradients that is no defect, rounded inputs
given; nor is twice that of the reference path."""

FLIP = 3e-2
"""Error of a network's gradients that one ReLU is worth which rounding puts
on the other side of 0, where images are few and small."""

TWICE = 'at most twice the error of the reference'


def checks(setting: Setting) -> Iterator[Check]:
    """Checks of this part."""
    if setting.on_cuda:
        yield 'kernels in use', _kernels
    shapes = ((8, 16, 6, 5), ) if setting.quick else (
        *((8, c, side, side) for c, side in SHAPES), *ODD)
    single = torch.float32
    for dtype in LIMITS:
        for name in FORMATS:
            for shape in shapes:
                yield (f'tail, {_short(dtype)}, {name}, {shape}',
                       partial(_tail, setting, shape, dtype, name))
    for name in FORMATS:
        yield f'tail of more than 2^31 elements, {name}', partial(
            _huge, setting, name)
    for what in 'x', 'c':
        yield f'tail, a NaN in {what}', partial(_nan, setting, what)
    for name in FORMATS:
        for dtype in (single, torch.bfloat16):
            yield f'tail, unaligned maps, {_short(dtype)}, {name}', partial(
                _tail, setting, shapes[0], dtype, name, change=_unaligned)
    if setting.on_cuda:
        yield 'tail, another stream', partial(_side_stream, setting)
        yield 'tail, captured, with new inputs', partial(_captured, setting)
    for what, change in CHANGES.items():
        yield f'tail, {what}', partial(_tail, setting, shapes[0], single,
                                       'contiguous', change=change)
    for mean in (10, 100, 1000):
        for name in FORMATS:
            yield f'large means, {mean} deviations, {name}', partial(
                _large_means, setting, mean, name)
    for dtype in (None, torch.bfloat16, torch.float16):
        if dtype != torch.float16 or setting.on_cuda:
            for name in FORMATS:
                yield (f'ResNet-50, gradients, {_short(dtype)}, {name}',
                       partial(compare_network, setting, dtype, name))
    if setting.on_cuda:
        yield 'compute-sanitizer', _sanitized  # takes minutes


def _short(dtype: torch.dtype | None) -> str:
    return 'float32' if dtype is None else str(dtype).removeprefix('torch.')


def _kernels() -> Outcome:
    used = dispatch.passes_for(torch.empty(1, device='cuda'))
    name = 'none' if used is None else used.__name__.rpartition('.')[2]
    return Outcome(name, 'triton', name == 'triton')


def _take(modules: nn.ModuleDict, inputs: list[Tensor]) -> dict[str, Tensor]:
    """Output and gradients of one pass."""
    x, c, grad = (t.detach() for t in inputs)
    wanted = dict(x=x.requires_grad_(), c=c.requires_grad_(), **{
        name: p for name, p in modules.named_parameters() if p.requires_grad})
    out = modules['step'](x, c, modules['norm'])
    grads = torch.autograd.grad(out, list(wanted.values()), grad)
    return dict(out=out.detach(), **dict(zip(wanted, grads)))


def _pass(modules: nn.ModuleDict, inputs: list[Tensor],
          dtype: torch.dtype) -> dict[str, Tensor]:
    """Output, gradients and statistics of one pass of a copy."""
    modules = copy.deepcopy(modules)
    if dtype == torch.float64:
        modules.double()
    found = _take(modules, [t.to(dtype) for t in inputs])
    return found | {name: b for name, b in modules.named_buffers()
                    if b.is_floating_point()}


def _away_from_kink(modules: nn.ModuleDict, inputs: list[Tensor]) -> None:
    """No gradient where rounding decides on which side of 0 we are."""
    modules = copy.deepcopy(modules).double()
    modules['step'].activation = nn.Identity()
    x, c, grad = inputs
    with torch.no_grad(), steps.fused(False):
        total = modules['step'](x.double(), c.double(), modules['norm'])
    grad *= (total.abs() > 0.1 * total.abs().mean()).to(grad)


def _errors(modules: nn.ModuleDict, inputs: list[Tensor],
            dtype: torch.dtype) -> list[dict[str, float]]:
    """Errors of what the fused path gives, and of the reference path."""
    with fused_tails(int(modules['step'].attention is not None)):
        found = _pass(modules, inputs, dtype)
    inputs = [t.clone() for t in inputs]  # cuDNN's BN wants them aligned
    with steps.fused(False):
        reference = _pass(modules, inputs, dtype)
        exact = _pass(modules, inputs, torch.float64)
    return [{name: error(got[name], t) for name, t in exact.items()}
            for got in (found, reference)]


def _tail(setting: Setting, shape: tuple[int, ...], dtype: torch.dtype,
          memory_format: str, change: Callable | None = None) -> Outcome:
    torch.manual_seed(0)
    modules = tail('StepNet', shape[1]).to(setting.device)
    inputs = maps(setting, shape, dtype, memory_format)
    if change is not None:
        change(modules, inputs)
    _away_from_kink(modules, inputs)
    fused, reference = _errors(modules, inputs, dtype)
    worst, limit = max(fused, key=fused.get), LIMITS[dtype]
    other = max(reference.values())
    return Outcome(f'{fused[worst]:.1e} ({worst}), reference {other:.1e}',
                   f'≤ {limit:.0e} or twice the reference',
                   fused[worst] <= max(limit, 2 * other))


def _frozen_norm(modules: nn.ModuleDict, inputs: list[Tensor]) -> None:
    from torchvision.ops import FrozenBatchNorm2d
    frozen = FrozenBatchNorm2d(inputs[0].shape[1]).to(inputs[0].device)
    frozen.load_state_dict(modules['norm'].state_dict(), strict=False)
    modules['norm'] = frozen


def _frozen_gate(modules: nn.ModuleDict, inputs: list[Tensor]) -> None:
    modules['step'].attention.requires_grad_(False)


def _running(modules: nn.ModuleDict, inputs: list[Tensor]) -> None:
    modules.eval()


def _folded(modules: nn.ModuleDict, inputs: list[Tensor]) -> None:
    modules['step'].attention = FoldedStepNet(
        modules.eval()['step'].attention)


def _unaligned(modules: nn.ModuleDict, inputs: list[Tensor]) -> None:
    """Move maps to addresses that are a multiple of no more than a number."""
    for k, t in enumerate(inputs):
        inputs[k] = t.new_empty(t.numel() + 1)[1:].as_strided(
            t.size(), t.stride(), 1).copy_(t)


CHANGES = {'frozen norm': _frozen_norm, 'frozen gate': _frozen_gate,
           'running statistics': _running, 'folded gate': _folded}


def _huge(setting: Setting, memory_format: str) -> Outcome:
    """The last of nine images is what the reference makes of it alone."""
    shape = (9, 4, 6, 5) if setting.quick else (9, 64, 2048, 2048)
    modules = tail('StepNet', shape[1]).to(setting.device)
    norms = modules['norm'], modules['step'].attention.bn
    inputs = maps(setting, shape, torch.bfloat16, memory_format)
    for norm in norms:
        norm.momentum = 1.0  # their statistics are the batch's from here on
    with fused_tails(1), torch.no_grad():
        batch = modules['step'](*inputs[:2], modules['norm'])[-1:].clone()
    for norm, values in zip(norms, (inputs[0].numel() // shape[1], shape[0])):
        norm.running_var *= 1 - 1 / values
    modules.eval()
    with steps.fused(False):
        exact = _pass(modules, [t[-1:] for t in inputs], torch.float64)
    with fused_tails(1):
        found = _take(modules, inputs)
    worst = max(error(batch, exact['out']), *(
        error(found[name][-1:], exact[name]) for name in ('out', 'x', 'c')))
    return Outcome(f'{worst:.1e}', '≤ 2e-02', worst <= 2e-2)


def _nan(setting: Setting, what: str) -> Outcome:
    """NaN is in the same places as on the reference path."""
    modules = tail('StepNet', 16).to(setting.device)
    inputs = maps(setting, (4, 16, 9, 7), torch.float32, 'contiguous')
    inputs['xc'.index(what)][1, 2, 3, 4] = torch.nan
    with fused_tails(1):
        found = _pass(modules, inputs, torch.float32)
    with steps.fused(False):
        reference = _pass(modules, inputs, torch.float32)
    differ = [name for name, t in reference.items()
              if not torch.equal(t.isnan(), found[name].isnan())]
    spread = bool(reference['out'].isnan().any())
    return Outcome(', '.join(differ) or 'as the reference',
                   'as the reference', spread and not differ)


def _equal(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> Outcome:
    differ = [n for n in wanted if not torch.equal(found[n], wanted[n])]
    return Outcome(', '.join(differ) or 'equal', 'equal', not differ)


def _side_stream(setting: Setting) -> Outcome:
    """There maps are written late, which other streams do not wait for."""
    modules = tail('StepNet', 64).to(setting.device)
    inputs = maps(setting, (8, 64, 28, 28), torch.float32, 'contiguous')
    late, stream = [torch.zeros_like(t) for t in inputs], torch.cuda.Stream()
    with fused_tails(2):
        wanted = _pass(modules, inputs, torch.float32)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(100_000_000)
            for t, value in zip(late, inputs):
                t.copy_(value)
            found = _pass(modules, late, torch.float32)
    torch.cuda.synchronize()
    return _equal(found, wanted)


def _captured(setting: Setting) -> Outcome:
    modules = tail('StepNet', 64).to(setting.device)
    first, second = (
        maps(setting, (8, 64, 28, 28), torch.float32, 'contiguous')
        for _ in range(2))
    with fused_tails(3):
        wanted = _take(modules, second)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            _take(modules, first)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = _take(modules, first)
    for t, value in zip(first, second):
        t.copy_(value)
    graph.replay()
    torch.cuda.synchronize()
    return _equal(found, wanted)


def _large_means(setting: Setting, mean: float,
                 memory_format: str) -> Outcome:
    """Errors of the result and all gradients beside a plain tail's."""
    torch.manual_seed(0)
    shape = (8, 64, 6, 5) if setting.quick else (32, 64, 56, 56)
    modules, plain = (tail(gate, 64).to(setting.device)
                      for gate in ('StepNet', None))
    inputs = maps(setting, shape, torch.float32, memory_format)
    c = inputs[1].double()
    c = (c - c.mean((0, 2, 3), True)) / c.std((0, 2, 3), keepdim=True)
    # No round numbers, which float32 holds too well.
    c += mean * torch.empty_like(c[:1, :, :1, :1]).uniform_(0.8, 1.2)
    inputs[1] = c.float().contiguous(memory_format=FORMATS[memory_format])
    for taken in (modules, plain):
        _away_from_kink(taken, inputs)
    fused, reference = _errors(modules, inputs, torch.float32)
    _, others = _errors(plain, inputs, torch.float32)
    # Plain's dx and bias have no gate's part. Below 1e-7 rounding decides.
    found = {name: value / (max(reference[name], others.get(name, 0)) + 1e-7)
             for name, value in fused.items() if 'running' not in name}
    worst = max(found, key=found.get)
    return Outcome(
        f'{found[worst]:.1f} times ({worst}); result: fused '
        f'{fused["out"]:.1e}, reference {reference["out"]:.1e}, plain '
        f'{others["out"]:.1e}', '≤ 2 times the reference or plain',
        found[worst] <= 2)


def _sanitized() -> Outcome:
    """No access outside of a tensor, where each is allocated by itself."""
    tool = shutil.which('compute-sanitizer', path=os.pathsep.join([
        os.environ.get('PATH', ''), '/usr/local/cuda/bin']))
    if tool is None:
        return Outcome('not installed')
    done = subprocess.run(
        [tool, '--error-exitcode', '9', sys.executable, '-c',
         f'from {__name__} import small_tails; small_tails()'],
        capture_output=True, text=True, cwd=Path(__file__).parents[2],
        env=dict(os.environ, PYTORCH_NO_CUDA_MEMORY_CACHING='1',
                 PYTHONPATH=os.pathsep.join(sys.path)))
    last = done.stdout.strip().rpartition('\n')[2]
    return Outcome(last[-200:], 'no error', done.returncode == 0)


def small_tails() -> None:
    """Odd tails in all dtypes and formats, for the sanitizer to watch."""
    for shape in ((5, 3, 5, 4), (35, 2, 5, 410), (3, 67, 33, 31)):
        for dtype in LIMITS:
            for name in FORMATS:
                _tail(Setting('cuda', True), shape, dtype, name)


def images(setting: Setting) -> Tensor:
    """Those that networks are compared on."""
    torch.manual_seed(0)
    shape = (2, 3, 64, 64) if setting.quick else (16, 3, 128, 128)
    return torch.randn(shape, device=setting.device)


def compare_network(setting: Setting, dtype: torch.dtype | None = None,
                    memory_format: str = 'contiguous',
                    change: Callable[[nn.Module], None] | None = None,
                    ) -> Outcome:
    """Compare all gradients of a ResNet-50 with those in float64.

    Args:
        setting (Setting): Where to.
        dtype (torch.dtype, optional): Of autocast.
        memory_format (str): Of the maps.
        change (Callable, optional): What to do with the network before the
            fused path takes its turn.
    """
    model = resnet().to(setting.device, memory_format=FORMATS[memory_format])
    x = images(setting).contiguous(memory_format=FORMATS[memory_format])
    with steps.fused(False):
        reference = network_gradients(model, x, dtype)
        exact = network_gradients(copy.deepcopy(model).double(), x.double())
    if change is not None:
        change(model)
    with fused_tails():
        found = network_gradients(model, x, dtype)
    return twice(error(found, exact), error(reference, exact))


def twice(fused: float, reference: float) -> Outcome:
    """Whether an error is at most twice the reference path's."""
    return Outcome(f'{fused:.1e}, reference {reference:.1e}', TWICE,
                   fused <= 2 * reference + FLIP)
