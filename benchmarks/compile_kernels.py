"""Compile the kernels to machine code for GPUs that need not be there.

Prints for each GPU, kernel, dtype and memory format, for a tail with norms
and one without, the most registers of a thread and the most bytes that one
spills. In a process of its own: Triton keeps what it compiled for the
process' GPU. ::

    python -m benchmarks.compile_kernels [--all]
"""

import argparse
import itertools
import re
import subprocess
import tempfile
from collections import defaultdict
from pathlib import Path

import torch
import triton
from triton.runtime import driver

from benchmarks.absent_gpu import AbsentGPU
from benchmarks.tails import SHAPES
from mmstepnet.precision import accumulation_dtype
from mmstepnet.steps.tail import aten
from mmstepnet.steps.tail import triton as passes
from mmstepnet.steps.tail.function import Norm, TailSpec

TARGETS = 80, 90, 100
"""Compute capabilities: A100, H100, B200."""

FORMATS = torch.contiguous_format, torch.channels_last

SMALL = (
    (torch.float32, (5, 3, 5, 4)),
    (torch.float16, (1, 1, 1, 1)),
    (torch.bfloat16, (2, 64, 8, 8)),
)
REAL = [
    (dtype, (n, channels, side, side))
    for dtype in (torch.float32, torch.bfloat16)
    for n in (2, 256)
    for channels, side in SHAPES
]


class Compiled:
    """A kernel that is compiled where it should be launched."""

    found = defaultdict(set)

    def __init__(self, launcher):
        self.kernel = launcher.kernel

    def __call__(self, kept, grid, warps, *args):
        compiled = self.kernel.warmup(*args, grid=grid, num_warps=warps)
        self.found[self.kernel.fn.__name__].add(compiled.asm['cubin'])


def tail_arguments(shape, dtype, memory_format, with_norms):
    """What the passes' ``forward`` takes, of tensors without memory.

    A tail with norms takes the statistics of the batch, and rectifies. One
    without is that over pooled vectors, which does not.
    """
    channels, wide = shape[1], accumulation_dtype(dtype)
    x, c = (
        torch.empty(
            shape, dtype=dtype, device='meta', memory_format=memory_format
        )
        for _ in range(2)
    )
    zero, one = aten.constants(channels, wide, x.device)
    if with_norms:
        count = torch.zeros((), dtype=torch.int64, device='meta')
        norm = Norm(True, 1e-5, zero, one, count, 0.1)
    else:
        norm = Norm(False, 0.0, zero, one)
    weights = torch.empty(channels, 2, dtype=wide, device='meta')
    learned = [one, zero, weights, one, zero, one, zero]
    return TailSpec(norm, norm, 1.5, with_norms), x, c, learned


def resources(cubin):
    """Registers of a thread and the bytes of its stack, where it spills."""
    tool = Path(triton.__file__).parent / 'backends/nvidia/bin/cuobjdump'
    with tempfile.NamedTemporaryFile(suffix='.cubin') as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run(
            [tool, '-res-usage', file.name],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    return tuple(
        int(re.search(rf'{key}:(\d+)', text)[1]) for key in ('REG', 'STACK')
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        '--all', action='store_true', help="at ResNet-50's sizes, too"
    )
    cases = SMALL + tuple(REAL if parser.parse_args().all else ())
    for name, launcher in passes.LAUNCH.items():
        passes.LAUNCH[name] = Compiled(launcher)
    for target in TARGETS:
        driver.set_active(AbsentGPU(target))
        # The formats differ in their indices alone, as on every GPU.
        for (dtype, shape), memory_format in itertools.product(
            *((cases, FORMATS) if target == 90 else (cases[:1], FORMATS[-1:]))
        ):
            Compiled.found.clear()
            for with_norms in (True, False):
                spec, x, c, learned = tail_arguments(
                    shape, dtype, memory_format, with_norms
                )
                out, saved = passes.forward(spec, x, c, learned)
                passes.backward(
                    spec, c, out if spec.relu else None, c, learned, saved
                )
            for name, cubins in Compiled.found.items():
                used = [resources(cubin) for cubin in cubins]
                print(
                    f'sm_{target}',
                    name,
                    str(dtype)[6:],
                    str(memory_format)[6:],
                    'x'.join(map(str, shape)),
                    *map(max, zip(*used)),
                    flush=True,
                )


if __name__ == '__main__':
    main()
