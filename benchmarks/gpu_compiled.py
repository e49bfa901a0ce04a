"""Check compiled and captured steps on a GPU, within nine minutes.

Each row is printed when it is there, the most important first, so that a cut
leaves what was found: values of a compiled step; ResNet-50's training with 256
images under ``torch.compile``; 32 and 8 images in eager mode, with the whole
step captured in a CUDA graph, and by ``mode='reduce-overhead'``; then
inference, float32 and SE. Times are medians over those of the plain network
in the same rounds. Without a GPU all runs small, compiled by Dynamo alone. ::

    timeout 540 python -m benchmarks.gpu_compiled
"""

import copy
import functools
import statistics
import time

import torch
import torch._dynamo
import torch.nn as nn
from torchvision.models import resnet18, resnet50

from benchmarks.gpu_parts.common import exact_values
from mmstepnet import insert_steps, steps
from mmstepnet.attentions import StepNet
from mmstepnet.steps import ResidualStep

DRY = not torch.cuda.is_available()
DEVICE = 'cpu' if DRY else 'cuda'
START = time.time()


def say(*parts):
    print(f'[{time.time() - START:4.0f} s]', *parts, flush=True)


def synchronize():
    if not DRY:
        torch.cuda.synchronize()


def compiled(function, **how):
    return torch.compile(function, fullgraph=True,
                         **(dict(backend='eager') if DRY else how))


def captured(step):
    """The same step, launched as one CUDA graph."""
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def contestant(name, images, dtype, training, how):
    """A step of a ResNet-50: 'plain', or a gate, perhaps 'GATE reference'."""
    torch.manual_seed(0)
    model, (gate, *path) = (resnet18 if DRY else resnet50)(), name.split()
    if gate != 'plain':
        insert_steps(model, gate, init_step=None)
    model.to(DEVICE, memory_format=torch.channels_last).train(training)
    side = 64 if DRY else 224
    x = torch.randn(images, 3, side, side, device=DEVICE).contiguous(
        memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    forward = model
    if how in ('compiled', 'reduce-overhead'):
        forward = compiled(model, mode=how if how != 'compiled' else None)

    def step():
        if how == 'reduce-overhead' and not DRY:
            torch.compiler.cudagraph_mark_step_begin()
        with (steps.fused(not path), torch.set_grad_enabled(training),
              torch.autocast(DEVICE, dtype or torch.bfloat16,
                             enabled=dtype is not None,
                             cache_enabled=how != 'captured')):
            out = forward(x)
            if training:
                loss = out.float().square().mean()
        if training:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=how != 'captured')
    for _ in range(1 if DRY else 4):  # compiles
        step()
    synchronize()
    return captured(step) if how == 'captured' and not DRY else step


def row(names, images, dtype=torch.bfloat16, training=True, how='compiled',
        rounds=10, repeats=2):
    label = (f'{how}, {"training" if training else "inference"}, {images} '
             f'images, {str(dtype or torch.float32)[6:]}')
    if DRY:
        images, rounds, repeats = 2, 2, 1
    torch._dynamo.reset()
    taken = {}
    for name in names:
        begun = time.time()
        try:
            taken[name] = contestant(name, images, dtype, training, how)
        except Exception as error:  # the other rows are wanted all the more
            say(f'{label} | {name} | FAILED: {error}')
            continue
        say(f'{label} | {name} | ready after {time.time() - begun:.0f} s')
    times = {name: [] for name in taken}
    for _ in range(rounds):
        for name, step in taken.items():
            synchronize()
            start = time.perf_counter()
            for _ in range(repeats):
                step()
            synchronize()
            times[name].append((time.perf_counter() - start) / repeats)
    for name, found in times.items():
        ratios = [a / b for a, b in zip(found, times.get('plain', found))]
        say(f'{label} | {name} | {statistics.median(found) * 1e3:.2f} ms | '
            f'{statistics.median(ratios):.3f} of plain')


def run(function, net, x, c, grad):
    """Result, gradients and statistics, in float64."""
    x, c = (t.clone().requires_grad_() for t in (x, c))
    out = function(x, c)
    out.backward(grad)
    found = dict(out=out.detach(), x=x.grad, c=c.grad, **{
        name: p.grad for name, p in net.named_parameters()},
        **dict(net.named_buffers()))
    return {name: t.double() for name, t in found.items()}


def values(dtype, memory_format, training, channels=64):
    """Errors of a compiled step and of the reference path, to float64."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    net = nn.ModuleDict(dict(
        step=ResidualStep(StepNet(channels), nn.ReLU()),
        norm=nn.BatchNorm2d(channels))).to(DEVICE).train(training)
    for parameter in net.parameters():
        nn.init.normal_(parameter)
    args = [(torch.randn(16, channels, 28, 28) + torch.randn(
        16, channels, 1, 1)).to(DEVICE, dtype).contiguous(
            memory_format=memory_format) for _ in range(3)]

    def step(net, x, c):
        return net['step'](x, c, net['norm'])
    found = []
    with exact_values():
        for compiles, kind in ((False, torch.float64), (True, None),
                               (False, None)):
            twin = copy.deepcopy(net).to(kind)
            function = functools.partial(step, twin)
            with steps.fused(compiles):
                found.append(run(
                    compiled(function) if compiles else function, twin,
                    *(t.to(kind) for t in args)))
    exact, *others = found
    ours, reference = ({k: float((v[k] - t).norm() / (t.norm() + 1e-12))
                        for k, t in exact.items()} for v in others)
    worst = max(exact, key=lambda k: ours[k] / max(reference[k], 1e-7))
    say(f'values, {"training" if training else "inference"}, '
        f'{str(dtype)[6:]}, {str(memory_format)[6:]} | {worst}: compiled '
        f'{ours[worst]:.1e}, reference path {reference[worst]:.1e}')


def main():
    say(torch.__version__, 'dry' if DRY else torch.cuda.get_device_name())
    for dtype in (torch.float32, torch.bfloat16):
        for memory_format in (torch.channels_last, torch.contiguous_format):
            for training in (True, False):
                values(dtype, memory_format, training)
    both = ['plain', 'StepNet']
    row([*both, 'StepNet reference'], 256)
    for images in (32, 8):
        for how in ('eager', 'captured', 'reduce-overhead'):
            row(both, images, how=how, rounds=20, repeats=5)
    row([*both, 'StepNet reference'], 256, training=False)
    row(both, 8, training=False, how='reduce-overhead', rounds=20, repeats=5)
    row(both, 256, None)
    row(['plain', 'SE', 'SE reference'], 256)
    say('done')


if __name__ == '__main__':
    main()
