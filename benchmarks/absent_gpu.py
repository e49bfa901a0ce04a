"""A GPU that Triton compiles for and that need not be there."""

from triton.backends.compiler import GPUTarget


class AbsentGPU:
    """What Triton's compiler asks a driver."""

    def __init__(self, capability):
        self.capability = capability

    def get_current_target(self):
        return GPUTarget('cuda', self.capability, warp_size=32)

    def get_current_device(self):
        return self.capability  # Triton keeps kernels by device

    def get_current_stream(self, device):
        return 0
