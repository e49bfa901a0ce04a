"""Count a compiled tail's passes over its maps on CUDA, without a GPU.

Inductor writes its Triton code for an H100 that is not there; nothing is
compiled or run. In that code each load and each store of a map is a pass. The
count of a tail is what a further block (a 1 x 1 convolution, which is no code
of Inductor's, a BN and a step) adds to a chain of them; that of a step at a
branch's end, what a block of timm's ViT-S or ConvNeXt-T has more than a plain
one. For PyTorch 2.12, whose insides it replaces. ::

    python -m benchmarks.count_passes [--images 256] [--inference]
    python -m benchmarks.count_passes --branches
"""

import argparse
import contextlib
import itertools
import math
import re
from types import SimpleNamespace
from unittest import mock

import torch
import torch._dynamo.device_interface
import torch._functorch.aot_autograd
import torch._inductor.compile_fx as compile_fx
import torch._inductor.config
import torch._inductor.scheduler
import torch.nn as nn
from functorch.compile import min_cut_rematerialization_partition
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.graph import GraphLowering
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from triton.runtime import driver

from benchmarks.absent_gpu import AbsentGPU
from mmstepnet import attentions, insert_steps, steps
from mmstepnet.checks import positive_int
from mmstepnet.steps import ResidualStep
from mmstepnet.steps.branch import BranchStep

H100 = SimpleNamespace(
    name='NVIDIA H100',
    major=9,
    minor=0,
    total_memory=80 * 2**30,
    multi_processor_count=132,
    regs_per_multiprocessor=65536,
    warp_size=32,
    max_threads_per_multi_processor=2048,
    max_threads_per_block=1024,
    shared_memory_per_block=49152,
    shared_memory_per_block_optin=232448,
    shared_memory_per_multiprocessor=233472,
    L2_cache_size=50 * 2**20,
    gcnArchName='',
    is_integrated=0,
)

KERNEL = re.compile(r"async_compile\.triton\('(\w+)', '''(.*?)'''", re.S)
LAUNCH = re.compile(r'^\s+(triton_\w+)\.run\((.*), stream=', re.M)

TAILS = {
    'plain': (None, True),
    'StepNet': ('StepNet', True),
    'StepNet, reference path': ('StepNet', False),
    'SE': ('SE', True),
    'SE, reference path': ('SE', False),
}
"""A gate, and whether it may be read by image."""


BRANCHES = {'plain': None, 'StepNet': 'StepNet', 'SE': 'SE'}
"""Gates at the ends of branches."""

BLOCKS = {'ViT-S': (197, 384), 'ConvNeXt-T': (96, 56, 56)}
"""Networks of timm, and the shape of a state of their first blocks."""


class Chain(nn.Module):
    """Blocks of a 1 x 1 convolution, a BN and a step."""

    def __init__(self, blocks, gate, channels, dtype):
        super().__init__()
        self.convs, self.norms, self.steps = (
            nn.ModuleList(make() for _ in range(blocks))
            for make in (
                lambda: nn.Conv2d(
                    channels, channels, 1, bias=False, dtype=dtype
                ),
                lambda: nn.BatchNorm2d(channels),
                lambda: ResidualStep(
                    gate and getattr(attentions, gate)(channels), nn.ReLU()
                ),
            )
        )

    def forward(self, x):
        for conv, norm, step in zip(self.convs, self.norms, self.steps):
            x = step(x, conv(x), norm)
        return x


class StopError(Exception):
    """Raised where the code would be compiled."""


@contextlib.contextmanager
def until_stopped():
    """Take a :class:`StopError`, which the compilers wrap."""
    try:
        yield
    except Exception as error:
        if StopError.__name__ not in str(error):
            raise


@contextlib.contextmanager
def absent_gpu():
    """Let PyTorch take an H100 for present; it must not be used."""
    interface = torch._dynamo.device_interface.CudaInterface
    answers = [
        (
            torch.cuda,
            dict(
                is_available=True,
                device_count=1,
                current_device=0,
                _lazy_init=None,
                is_initialized=False,
                _exchange_device=0,
                _maybe_exchange_device=0,
                synchronize=None,
                get_device_properties=H100,
                get_device_capability=(9, 0),
                get_device_name=H100.name,
                is_bf16_supported=True,
                get_rng_state=torch.zeros(16, dtype=torch.uint8),
                mem_get_info=(H100.total_memory, H100.total_memory),
            ),
        ),
        (
            interface,
            dict(
                current_device=0,
                is_available=True,
                get_compute_capability=90,
                get_device_properties=H100,
                get_raw_stream=0,
            ),
        ),
        (interface.Worker, dict(current_device=0, get_device_properties=H100)),
        (torch._inductor.scheduler, dict(has_triton=True)),
    ]
    with contextlib.ExitStack() as stack:
        for owner, named in answers:
            for name, answer in named.items():
                function = lambda *args, answer=answer, **kwargs: answer  # noqa: E731
                stack.enter_context(
                    mock.patch.object(
                        owner,
                        name,
                        staticmethod(function)
                        if isinstance(owner, type)
                        else function,
                    )
                )
        # The format of a convolution's result, as cuDNN has it.
        stack.enter_context(
            mock.patch.object(
                torch._C,
                '_conv_determine_backend_memory_format',
                lambda x, weight, backend: (
                    torch.channels_last
                    if any(
                        t.is_contiguous(memory_format=torch.channels_last)
                        and not t.is_contiguous()
                        for t in (x, weight)
                    )
                    else torch.contiguous_format
                ),
            )
        )
        yield


def write_code(model, x):
    """Inductor's code of the forward and of the backward graph.

    Args:
        model (nn.Module): On the meta device.
        x (Tensor): Its input, there as well.

    Returns:
        list: For each graph the code, and name -> (values, bytes of one) of
        what its kernels are given.
    """
    found = []
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)

    def fake(t, device):
        with mode:
            new = torch.empty_strided(
                t.shape, t.stride(), dtype=t.dtype, device=device
            )
        return (
            nn.Parameter(new, t.requires_grad)
            if isinstance(t, nn.Parameter)
            else new.requires_grad_(t.requires_grad and device == 'cpu')
        )

    def move(graph, device):
        for node in graph.graph.nodes:
            for key in ('example_value', 'val'):
                node.meta.pop(key, None)
            if 'device' in node.kwargs:
                node.update_kwarg('device', torch.device(device))
        graph.recompile()

    def lower(graph, inputs, **kwargs):
        with absent_gpu():
            inputs = [fake(t, 'cuda:0').detach() for t in inputs]
            move(graph, 'cuda:0')
            FakeTensorProp(graph, mode).propagate_dont_convert_inputs(*inputs)
            with until_stopped():
                compile_fx.compile_fx_inner(
                    graph,
                    inputs,
                    static_input_idxs=[],
                    cudagraphs=False,
                    graph_id=0,
                    **kwargs,
                )
        return lambda *args: None

    def stop(self):
        wrapper, _ = self.codegen()
        sizes = {}
        for name in (*self.name_to_buffer, *self.graph_inputs):
            with contextlib.suppress(Exception):
                sizes[name] = (
                    int(self.get_numel(name)),
                    self.get_dtype(name).itemsize,
                )
        found.append((wrapper.value, sizes))
        raise StopError

    def partition(joint, inputs, **kwargs):
        compile_fx._recursive_joint_graph_passes(joint)
        return min_cut_rematerialization_partition(
            joint, inputs, compiler='inductor', **kwargs
        )

    def backend(graph, inputs):
        # Autograd's engine asks for a device, so it runs over fake CPU
        # tensors; what it wrote down is moved.
        move(graph, 'cpu')
        with torch._guards.tracing(torch._guards.TracingContext(mode)):
            torch._functorch.aot_autograd.aot_module_simplified(
                graph,
                [fake(t, 'cpu') for t in inputs],
                fw_compiler=lower,
                bw_compiler=lambda *args: lower(*args, is_backward=True),
                inference_compiler=lambda *args: lower(
                    *args, is_inference=True
                ),
                decompositions=select_decomp_table(),
                partition_fn=partition,
                keep_inference_input_mutations=True,
            )
        raise StopError

    torch._dynamo.reset()
    with (
        torch._functorch.config.patch(
            force_non_lazy_backward_lowering=True, enable_autograd_cache=False
        ),
        torch._inductor.config.patch(fx_graph_cache=False, compile_threads=1),
        mock.patch.object(GraphLowering, 'compile_to_module', stop),
        torch.set_grad_enabled(model.training),
        until_stopped(),
    ):
        torch.compile(model, backend=backend, fullgraph=True)(x)
    return found


def count(code, sizes, values, itemsize):
    """Passes of a graph's kernels over maps of so many values."""
    sources, passes = dict(KERNEL.findall(code)), 0
    for name, given in LAUNCH.findall(code):
        source = sources[name]
        names = re.search(rf'def {name}\((.*?)\):', source, re.S)
        body = source[names.end() :]
        given = re.sub(
            r'reinterpret_tensor\((\w+),[^)]*\)[^)]*\)', r'\1', given
        ).split(', ')
        if math.prod(int(n) for n in given if n.isdigit()) < values / 2:
            continue  # it reads a part
        for parameter, argument in zip(names[1].split(','), given):
            parameter = parameter.split(':')[0].strip()
            numel, size = sizes.get(argument, (0, 0))
            if numel >= values / 2 and 'ptr' in parameter:
                passes += (
                    numel
                    * size
                    / (values * itemsize)
                    * len(
                        re.findall(rf'tl\.(?:load|store)\({parameter} ', body)
                    )
                )
    return passes


def passes_of_a_block(make, x):
    """Passes in the forward and in the backward.

    The mean of two blocks in a chain of four: the first and the last of a
    chain differ.

    Args:
        make (Callable): Makes a chain of so many blocks.
        x (Tensor): Its input, on the meta device.
    """
    totals = []
    for blocks in (2, 4):
        chain = make(blocks).train(x.requires_grad)
        graphs = write_code(chain, x)
        assert len(graphs) == 1 + chain.training, 'Inductor wrote no code'
        totals.append(
            [count(*graph, x.numel(), x.dtype.itemsize) for graph in graphs]
        )
    return [(more - less) / 2 for less, more in zip(*totals)]


def passes_of_a_tail(
    gate, by_image, dtype, memory_format, shape, training=True
):
    """Passes of a tail in the forward and in the backward."""
    x = (
        torch.empty(shape, dtype=dtype, device='meta')
        .contiguous(memory_format=memory_format)
        .requires_grad_(training)
    )

    def make(blocks):
        chain = Chain(blocks, gate, shape[1], dtype)
        return chain.to('meta', memory_format=memory_format)

    with steps.fused(by_image):
        return passes_of_a_block(make, x)


def passes_of_a_branch(name, gate, dtype, images, training=True):
    """Passes of a block of a network, and its steps."""
    from timm.models.convnext import ConvNeXtBlock
    from timm.models.vision_transformer import Block

    shape = BLOCKS[name]
    found = []

    def make(blocks):
        kind = {
            'ViT-S': lambda: Block(384, 6),
            'ConvNeXt-T': lambda: ConvNeXtBlock(96),
        }[name]
        chain = nn.Sequential(*(kind() for _ in range(blocks)))
        if gate:
            insert_steps(chain, gate, example=torch.randn(1, *shape))
            many = sum(isinstance(m, BranchStep) for m in chain.modules())
            found.append(many / blocks)
        return chain.to('meta', dtype)

    x = torch.empty(images, *shape, dtype=dtype, device='meta')
    passes = passes_of_a_block(make, x.requires_grad_(training))
    return passes, found[0] if found else 0


def count_branches(args):
    """Print what steps at branches' ends add to the passes of a block."""
    for dtype, name in itertools.product(
        (torch.bfloat16, torch.float32), BLOCKS
    ):
        for title, gate in BRANCHES.items():
            passes, many = passes_of_a_branch(
                name, gate, dtype, args.images, not args.inference
            )
            total = sum(passes)
            if gate is None:
                plain = total
                more = ''
            else:
                more = f': {(total - plain) / many:g} a step over plain'
            print(
                f"{name}'s block, {title} | {str(dtype)[6:]} | "
                f'{" + ".join(f"{n:g}" for n in passes)} = {total:g}{more}',
                flush=True,
            )


def count_tails(args):
    """Print the passes of tails."""
    for dtype, memory_format, (name, (gate, by_image)) in itertools.product(
        (torch.bfloat16, torch.float32),
        (torch.channels_last, torch.contiguous_format),
        TAILS.items(),
    ):
        found = passes_of_a_tail(
            gate,
            by_image,
            dtype,
            memory_format,
            (args.images, 256, 56, 56),
            not args.inference,
        )
        print(
            f'{name} | {str(dtype)[6:]} | {str(memory_format)[6:]} | '
            f'{" + ".join(f"{n:g}" for n in found)} = {sum(found):g}',
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        '--images',
        type=positive_int,
        default=256,
        help='images of a batch. Default: %(default)s',
    )
    parser.add_argument(
        '--inference',
        action='store_true',
        help='count those of inference. Default: of training',
    )
    parser.add_argument(
        '--branches',
        action='store_true',
        help="count steps at branches' ends. Default: tails",
    )
    args = parser.parse_args()
    driver.set_active(AbsentGPU(90))
    if args.branches:
        count_branches(args)
    else:
        count_tails(args)


if __name__ == '__main__':
    main()
