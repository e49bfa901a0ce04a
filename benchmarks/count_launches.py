"""Count what a tail launches on CUDA, and time it, without a GPU.

Forward and backward of one tail in training. The launches of Triton's kernels
are counted, and every operation that PyTorch runs beside them. Then all is
timed on CPU tensors of no size, kernels being no-ops: what is left is what a
process does to launch a tail, in multiples of the plain one (BN, add, ReLU).
In a process of its own, which it makes believe that there is an H100. ::

    python -m benchmarks.count_launches
"""

import argparse
import re
import statistics
import time
from unittest import mock

import torch
import torch.nn as nn
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime import driver

from benchmarks.compile_kernels import AbsentGPU
from mmstepnet import attentions, steps
from mmstepnet.checks import positive_int
from mmstepnet.steps import ResidualStep
from mmstepnet.steps.tail import dispatch
from mmstepnet.steps.tail import triton as passes

SHAPE = 4, 64, 4, 4
CALLS = 100

FREE = re.compile(r'^aten::(empty|detach|alias|view|_unsafe_view|reshape|'
                  r'as_strided|expand|t|transpose|permute|unsqueeze|squeeze|'
                  r'slice|select|split|unbind|new_empty|lift_fresh)')
"""Operations that launch nothing."""


class Launched:
    """A launcher that does nothing but count."""

    count = 0

    def __init__(self, source, metadata):
        pass

    def __call__(self, *args):
        Launched.count += 1


class Utils:
    """What Triton loads a kernel with."""

    def load_binary(self, name, kernel, shared, device):
        return 1, 1, 32, 0, 1024

    def get_device_properties(self, device):
        return dict(max_shared_mem=232448, multiprocessor_count=132,
                    warpSize=32)


class AbsentH100(AbsentGPU):
    """A driver whose kernels are no-ops."""

    launcher_cls = Launched
    utils = Utils()

    def __init__(self):
        super().__init__(90)


class Operations(TorchDispatchMode):
    """Operations that would launch a kernel."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += not FREE.match(function.name())
        return function(*args, **kwargs or {})


def tails():
    """Functions that take a tail and its gradients, by name."""
    x, c, grad = (torch.zeros(SHAPE) for _ in range(3))
    x.requires_grad_(), c.requires_grad_()
    norm, relu = nn.BatchNorm2d(SHAPE[1]), nn.ReLU(inplace=True)

    wanted = [x, c, *norm.parameters()]

    def plain():
        torch.autograd.grad(relu(norm(c).add_(x)), wanted, grad)
    found = {'plain': plain}
    for name, gate, fused in (('StepNet', 'StepNet', True),
                              ('StepNet, reference', 'StepNet', False),
                              ('SE', 'SE', True)):
        step = ResidualStep(getattr(attentions, gate)(SHAPE[1]), relu)

        every = *wanted, *step.parameters()

        def take(step=step, fused=fused, every=every):
            with steps.fused(fused):
                torch.autograd.grad(step(x, c, norm), every, grad)
        found[name] = take
    return found


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--rounds', type=positive_int, default=15)
    args = parser.parse_args()
    driver.set_active(AbsentH100())
    torch.set_num_threads(1)
    times = {}
    with mock.patch.object(dispatch, 'passes_for', lambda maps: passes):
        contestants = tails()
        for take in contestants.values():
            take()  # compiles
        for _ in range(args.rounds):
            for name, take in contestants.items():
                start = time.process_time()
                for _ in range(CALLS):
                    take()
                times.setdefault(name, []).append(time.process_time() - start)
        for name, take in contestants.items():
            Launched.count = 0
            with (mock.patch.object(dispatch, 'is_watched', lambda _: False),
                  Operations() as operations):
                take()
            ratio = statistics.median(
                a / b for a, b in zip(times[name], times['plain']))
            print(f'{name}: {Launched.count} kernels of Triton, '
                  f'{operations.count} operations of PyTorch; '
                  f"CPU time {ratio:.2f} of the plain tail's", flush=True)


if __name__ == '__main__':
    main()
