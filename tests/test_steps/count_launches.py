"""Count what a tail launches on a GPU that need not be there.

Forward and backward of one tail in training: operations that PyTorch runs
one by one (counted by a dispatch mode), launches of the
hand-written Triton kernels, and the launches and external calls in the code
that Inductor writes for CUDA from the vectors' functions. In a process of its
own, which it makes believe that there is an H100. ::

    python -m tests.test_steps.count_launches [--shape 2 256 200 336] [--code]
"""

import argparse
import re
from contextlib import ExitStack, nullcontext
from types import SimpleNamespace
from unittest import mock

import torch
import torch.nn as nn
from torch._dynamo.backends.common import aot_autograd
from torch._inductor import config
from torch._inductor.compile_fx import compile_fx_inner
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.graph import GraphLowering
from torch._subclasses import fake_tensor
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
)
from triton.runtime import driver

from mmstepnet import attentions, steps
from mmstepnet.steps import ResidualStep, compiled, tail
from mmstepnet.steps.kernels import triton_kernels
from tests.test_steps.compile_kernels import AbsentGPU

GATES = 'StepNet', 'SE', 'ECA', 'SEM', 'SRM'

H100 = SimpleNamespace(
    name='NVIDIA H100', major=9, minor=0, multi_processor_count=132,
    warp_size=32, max_threads_per_multi_processor=2048,
    regs_per_multiprocessor=65536, total_memory=80 << 30,
    shared_memory_per_block=49152, shared_memory_per_block_optin=232448,
    L2_cache_size=50 << 20, gcnArchName='', max_threads_per_block=1024)

FREE = re.compile(r'^aten::(empty|detach|alias|view|_unsafe_view|reshape|'
                  r'as_strided|expand|t|transpose|permute|unsqueeze|squeeze|'
                  r'slice|select|split|unbind|_reshape_alias|new_empty|'
                  r'empty_like|empty_strided|lift_fresh|is_pinned|sym_\w+)\b')


class Operations(TorchDispatchMode):
    """Operations that launch a kernel."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if not FREE.match(function.name()):
            self.names.append(function.name())
        return function(*args, **kwargs or {})


class Launched:
    """A hand-written kernel that is counted where it would be launched."""

    count = 0

    def __getitem__(self, grid):
        def launch(*args, **kwargs):
            Launched.count += 1
        return launch


class WrittenError(Exception):
    """The code that Inductor wrote; nothing is built from it."""


def written_code(to_compile, args):
    """Code that Inductor writes for CUDA, from a function of CPU tensors.

    The graph of PyTorch's operations, as AOTAutograd leaves it, is brought to
    the other device: autograd would ask for it.
    """
    written = []

    def write(graph, inputs):
        mode = next(t for t in inputs if hasattr(t, 'fake_mode')).fake_mode
        with ExitStack() as stack:
            believe_in_a_gpu(stack)
            stack.enter_context(mode)
            inputs = [t.to('cuda') if isinstance(t, torch.Tensor) else t
                      for t in inputs]
            for node in graph.graph.nodes:
                if 'device' in node.kwargs:
                    node.update_kwarg('device', torch.device('cuda', 0))
            FakeTensorProp(graph, mode).propagate_dont_convert_inputs(*inputs)
            compile_fx_inner(graph, inputs)

    def stop(graph, *_):
        code = graph.codegen()[0]
        written.append(getattr(code, 'value', code))
        raise WrittenError
    torch._dynamo.reset()
    backend = aot_autograd(fw_compiler=write, decompositions=(
        select_decomp_table()), keep_inference_input_mutations=True)
    with (mock.patch.object(GraphLowering, 'compile_to_module', stop),
          config.patch(to_compile.options)):
        try:
            torch.compile(to_compile.function, dynamic=to_compile.dynamic,
                          fullgraph=True, backend=backend)(*args)
        except Exception:
            if not written:
                raise
    return written[0]


def launches(code):
    """Names of what the wrapper of a compiled function calls."""
    body = code[code.rindex('def call('):]
    return re.findall(r'(triton_\w+)\.run\(|(extern_kernels\.\w+)\(|'
                      r'(torch\.ops\.[\w.]+)\(', body)


def count(gate, shape, print_code=False):
    """Operations, hand-written kernels and those of each function."""
    found = {}
    operations = Operations()

    def record(self, device, changed, *args):
        with torch.no_grad(), _disable_current_modes():
            code = written_code(self, args)
            result = self.function(*args)
        if print_code:
            print(code)
        found[self.function.__name__] = [
            next(filter(None, names)) for names in launches(code)]
        return result
    step, norm, x, c, grad = tensors_of(gate, shape)
    Launched.count = 0
    with (mock.patch.object(compiled.Compiled, '__call__', record),
          mock.patch.object(tail, 'backend', lambda maps: triton_kernels),
          operations):
        out = tail.fused_residual_step(x, c, norm, step.attention, True)
        torch.autograd.grad(
            out, [x, c, *norm.parameters(), *step.parameters()], grad)
    return operations.names, Launched.count, found


def count_operations(gate, shape, plain):
    """Those of the tail of a plain network, or of the reference path."""
    step, norm, x, c, grad = tensors_of(gate, shape)
    with steps.fused(False), Operations() as operations:
        if plain:
            out = norm(c).add_(x).relu_()
            parameters = norm.parameters()
        else:
            out = step(x, c, norm)
            parameters = [*norm.parameters(), *step.parameters()]
        torch.autograd.grad(out, [x, c, *parameters], grad)
    return len(operations.names)


def tensors_of(gate, shape):
    step = ResidualStep(getattr(attentions, gate)(shape[1]), nn.ReLU())
    x, c, grad = (torch.zeros(shape, dtype=torch.bfloat16) for _ in range(3))
    return (step, nn.BatchNorm2d(shape[1]), x.requires_grad_(),
            c.requires_grad_(), grad)


def believe_in_a_gpu(stack):
    """Patch what asks for it."""
    driver.set_active(AbsentGPU(90))
    stack.enter_context(mock.patch.object(
        fake_tensor, 'init_gpu_context', lambda device: None))
    stack.enter_context(mock.patch(
        'torch._inductor.scheduler.has_triton', lambda *_: True))
    # Patterns that are traced on the device to be found.
    stack.enter_context(mock.patch(
        'torch._inductor.fx_passes.post_grad.lazy_init', lambda *_: None))
    for name, value in dict(
            is_available=lambda: True, device_count=lambda: 1,
            current_device=lambda: 0, device_of=lambda t: nullcontext(),
            get_device_capability=lambda device=None: (9, 0),
            get_device_properties=lambda device=None: H100,
            get_rng_state=lambda *_: torch.zeros(16, dtype=torch.uint8),
            set_rng_state=lambda *_: None, is_initialized=lambda: False,
            is_bf16_supported=lambda *_: True, synchronize=lambda *_: None,
            _get_device_properties=lambda index: H100,
            _exchange_device=lambda index: 0,
            _maybe_exchange_device=lambda index: 0,
            _lazy_init=lambda: None).items():
        stack.enter_context(mock.patch.object(torch.cuda, name, value,
                                              create=True))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('gates', nargs='*', default=GATES)
    parser.add_argument('--shape', type=int, nargs=4, metavar='SIZE',
                        default=(8, 256, 28, 28), help='of the maps')
    parser.add_argument('--code', action='store_true',
                        help='print the code that Inductor writes')
    args = parser.parse_args()
    for name in [n for n in vars(triton_kernels) if n.endswith('_kernel')]:
        setattr(triton_kernels, name, Launched())
    for gate in args.gates:
        operations, kernels, found = count(gate, args.shape, args.code)
        total = len(operations) + kernels + sum(map(len, found.values()))
        print(gate, total, 'plain',
              count_operations(gate, args.shape, True), 'reference',
              count_operations(gate, args.shape, False), 'operations',
              operations, 'kernels', kernels, found, flush=True)


if __name__ == '__main__':
    main()
