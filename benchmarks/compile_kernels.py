"""Compile the kernels to machine code for GPUs that need not be there.

Prints for each GPU, kernel, dtype and memory format, for a tail with norms
and one without, the most registers of a thread and the most bytes that one
spills; ``scaled`` kernels are those of a step at a branch's end. In a process
of its own: Triton keeps what it compiled for the process' GPU. ::

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
from mmstepnet.steps.tail import aten, scaled_triton
from mmstepnet.steps.tail import triton as passes
from mmstepnet.steps.tail.parts import Norm, ScaledSpec, TailSpec, find_layout

TARGETS = 80, 90, 100
"""Compute capabilities: A100, H100, B200."""

FORMATS = torch.contiguous_format, torch.channels_last

KINDS = (True, 0), (False, 0), (False, passes.MOST_PLACES)
"""Whether norms take the statistics of the batch, and how large a map may be
that is read once."""

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

    def __init__(self, launcher, prefix):
        self.kernel = launcher.kernel
        self.name = prefix + self.kernel.fn.__name__

    def __call__(self, kept, grid, warps, *args):
        compiled = self.kernel.warmup(*args, grid=grid, num_warps=warps)
        self.found[self.name].add(compiled.asm['cubin'])


def tail_arguments(shape, dtype, memory_format, with_norms):
    """What the passes' ``forward`` takes, of tensors without memory.

    A tail with norms takes the statistics of the batch, and rectifies. One
    without is that over pooled vectors, which does not.
    """
    x, c = maps(shape, dtype, memory_format)
    norm, one, zero, weights = gate_arguments(shape, dtype, with_norms)
    learned = [one, zero, weights, one, zero, one, zero]
    return TailSpec(norm, norm, 1.5, with_norms), x, c, learned


def scaled_arguments(shape, dtype, memory_format, with_norms, mixed):
    """The same for a step at a branch's end.

    Its state is of float32 and in the other format where it is ``mixed``.
    """
    x, f = maps(shape, dtype, memory_format)
    if mixed:
        (other,) = {*FORMATS} - {memory_format}
        x, _ = maps(shape, torch.float32, other)
    norm, one, zero, weights = gate_arguments(shape, dtype, with_norms)
    layout, x_layout = (find_layout(t.shape, t.stride(), 0, 1) for t in (f, x))
    spec = ScaledSpec(norm, 1.5, layout, x_layout, x.dtype)
    return spec, x, f, [weights, one, zero, one, zero]


def maps(shape, dtype, memory_format):
    """State and branch, without memory."""
    return [
        torch.empty(
            shape, dtype=dtype, device='meta', memory_format=memory_format
        )
        for _ in range(2)
    ]


def gate_arguments(shape, dtype, with_norms):
    """A norm, ones, zeros and the weights of a pair, without memory."""
    channels, wide = shape[1], accumulation_dtype(dtype)
    zero, one = aten.constants(channels, wide, torch.device('meta'))
    if with_norms:
        count = torch.zeros((), dtype=torch.int64, device='meta')
        norm = Norm(True, 1e-5, zero, one, count, 0.1)
    else:
        norm = Norm(False, 0.0, zero, one)
    weights = torch.empty(channels, 2, dtype=wide, device='meta')
    return norm, one, zero, weights


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
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        '--all',
        action='store_true',
        help="at ResNet-50's sizes, too. Default: at small sizes alone",
    )
    cases = SMALL + tuple(REAL if parser.parse_args().all else ())
    for module, prefix in (passes, ''), (scaled_triton, 'scaled.'):
        for name, launcher in module.LAUNCH.items():
            module.LAUNCH[name] = Compiled(launcher, prefix)
    for target in TARGETS:
        driver.set_active(AbsentGPU(target))
        # The formats differ in their indices alone, as on every GPU.
        for (dtype, shape), memory_format in itertools.product(
            *((cases, FORMATS) if target == 90 else (cases[:1], FORMATS[-1:]))
        ):
            Compiled.found.clear()
            for with_norms, passes.MOST_PLACES in KINDS:
                spec, x, c, learned = tail_arguments(
                    shape, dtype, memory_format, with_norms
                )
                out, saved = passes.forward(spec, x, c, learned)
                passes.backward(
                    spec, c, out if spec.relu else None, c, learned, saved
                )
                spec, x, f, learned = scaled_arguments(
                    shape, dtype, memory_format, with_norms, not with_norms
                )
                out, saved = scaled_triton.forward(spec, x, f, learned)
                scaled_triton.backward(
                    spec, spec.layout, out, f, learned, saved
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
