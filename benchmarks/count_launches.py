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
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime import driver

from benchmarks.absent_gpu import AbsentGPU
from benchmarks.rounds import measure
from benchmarks.tails import Tail
from mmstepnet.checks import positive_int
from mmstepnet.steps.tail import dispatch
from mmstepnet.steps.tail import triton as passes

SHAPE = 4, 64, 4, 4
CALLS = 100

FREE = re.compile(
    r'^aten::(empty|detach|alias|view|_unsafe_view|reshape|'
    r'as_strided|expand|t|transpose|permute|unsqueeze|squeeze|'
    r'slice|select|split|unbind|new_empty|lift_fresh)'
)
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
        return dict(
            max_shared_mem=232448, multiprocessor_count=132, warpSize=32
        )


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


TAILS = {
    'plain': (None, True),
    'StepNet': ('StepNet', True),
    'StepNet, reference': ('StepNet', False),
    'SE': ('SE', True),
}
"""Gates, and whether the fused path is taken."""


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument('--rounds', type=positive_int, default=15)
    parser.set_defaults(device='cpu', clock='cpu', warmup=1)
    args = parser.parse_args()
    driver.set_active(AbsentH100())
    torch.set_num_threads(1)
    with mock.patch.object(dispatch, 'passes_for', lambda maps: passes):
        tails = {
            name: Tail(
                args, SHAPE, torch.contiguous_format, gate, fused, CALLS
            )
            for name, (gate, fused) in TAILS.items()
        }
        times = measure(tails, args)
        for name, tail in tails.items():
            tail.repeats, Launched.count = 1, 0
            with Operations() as operations:
                tail.step()
            print(
                f'{name}: {Launched.count} kernels of Triton, '
                f'{operations.count} operations of PyTorch; CPU time '
                f"{times[name]['ratio']:.2f} of the plain tail's",
                flush=True,
            )


if __name__ == '__main__':
    main()
