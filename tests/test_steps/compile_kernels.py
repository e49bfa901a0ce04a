"""Compile the kernels to machine code for a GPU that need not be there.

In a process of its own: Triton keeps what it compiled for the process' GPU.
"""

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from mmstepnet.steps.kernels import triton_kernels
from tests.test_steps.backends import FORMATS, beside_aten


class AbsentGPU:
    """What Triton's compiler asks a driver."""

    def get_current_target(self):
        return GPUTarget('cuda', 90, warp_size=32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


class Compiled:
    """A kernel that is compiled where it should be launched."""

    def __init__(self, name):
        self.name = name
        self.kernel = getattr(triton_kernels, name)

    def __getitem__(self, grid):

        def launch(*args, **kwargs):
            compiled = self.kernel.warmup(*args, grid=grid, **kwargs)
            assert compiled.asm['cubin']
            print(self.name)

        return launch


def main():
    driver.set_active(AbsentGPU())
    for name in [n for n in vars(triton_kernels) if n.endswith('_kernel')]:
        setattr(triton_kernels, name, Compiled(name))
    for dtype, shape in ((torch.float64, (2, 3, 5, 4)),
                         (torch.float32, (2, 3, 5, 4)),
                         (torch.float16, (1, 1, 1, 1)),
                         (torch.bfloat16, (2, 64, 8, 8))):
        for memory_format in FORMATS:
            beside_aten(triton_kernels, 'cpu', dtype, memory_format, shape)


if __name__ == '__main__':
    main()
