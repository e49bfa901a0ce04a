"""Count what a step launches on CUDA, and time it, without a GPU.

Forward and backward of one tail in training. The launches of Triton's kernels
are counted, and every operation that PyTorch runs beside them. Then all is
timed on CPU tensors of no size, kernels being no-ops: what is left is what a
process does to launch a tail, in multiples of the plain one (BN, add, ReLU).
With ``--branches`` it is a step at a branch's end, over the addition alone;
then what steps add in blocks of a ViT and a ConvNeXt, and in a whole ViT-Ti,
by timm. In a process of its own, which it makes believe that there is an
H100. ::

    python -m benchmarks.count_launches [--branches]
"""

import argparse
import re
import statistics
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime import driver

from benchmarks.absent_gpu import AbsentGPU
from benchmarks.rounds import measure
from benchmarks.tails import Branch, Tail
from mmstepnet import insert_steps, steps
from mmstepnet.checks import positive_int
from mmstepnet.steps.branch import BranchStep
from mmstepnet.steps.tail import aten, dispatch, scaled_aten, scaled_triton
from mmstepnet.steps.tail import triton as passes

SHAPE = 4, 64, 4, 4
TOKENS = 4, 16, 64
CALLS = 100
PASSES = {aten: passes, scaled_aten: scaled_triton}

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


CONTESTANTS = {
    'plain': (None, True),
    'StepNet': ('StepNet', True),
    'StepNet, reference': ('StepNet', False),
    'SE': ('SE', True),
}
"""Gates, and whether the step by hand is taken."""

NETWORKS = {
    "a ViT's blocks": (
        'vit_tiny_patch16_224',
        dict(depth=2, embed_dim=64, num_heads=2),
        64,
    ),
    "a ConvNeXt's blocks": (
        'convnext_atto',
        dict(depths=(2, 2, 2, 2), dims=(8, 16, 24, 32)),
        64,
    ),
    'ViT-Ti': ('vit_tiny_patch16_224', {}, 224),
    'ConvNeXt-atto': ('convnext_atto', {}, 224),
}
"""Names of timm, arguments, and the side of the images."""


def count_launches(take):
    """Kernels of Triton, and operations of PyTorch, in a call."""
    Launched.count = 0
    with Operations() as operations:
        take()
    return Launched.count, operations.count


def launches_of(name, options, side, gate, fused):
    """Launches of a training step of a network, and its steps."""
    import timm

    if 'vit' in name:
        options = dict(options, img_size=side)
    model = timm.create_model(name, num_classes=10, **options)
    images = torch.randn(2, 3, side, side)
    found = []
    if gate is not None:
        insert_steps(model, gate, example=images)
        found = [m for m in model.modules() if isinstance(m, BranchStep)]

    def take():
        with steps.fused(fused):
            model(images).square().mean().backward()

    take()  # what is made once
    model.zero_grad()
    return sum(count_launches(take)), len(found)


def count_in_networks():
    """Print what steps add to the launches of networks."""
    for title, (name, options, side) in NETWORKS.items():
        counts = {
            contestant: launches_of(name, options, side, *how)
            for contestant, how in CONTESTANTS.items()
        }
        plain, _ = counts.pop('plain')
        for contestant, (count, many) in counts.items():
            print(
                f'{title}, {contestant}: {plain} launches plain, {count} with '
                f'{many} steps: {(count - plain) / many:.1f} a step, '
                f'{count / plain:.2f} of plain',
                flush=True,
            )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        '--rounds',
        type=positive_int,
        default=15,
        help='rounds that are timed. Default: %(default)s',
    )
    parser.add_argument(
        '--branches',
        action='store_true',
        help="steps at branches' ends. Default: tails",
    )
    parser.set_defaults(device='cpu', clock='cpu', warmup=1)
    args = parser.parse_args()
    driver.set_active(AbsentH100())
    torch.set_num_threads(1)
    with mock.patch.object(
        dispatch, 'passes_for', lambda maps, oracle: PASSES[oracle]
    ):
        if args.branches:
            contestants = {
                name: Branch(args, TOKENS, gate, fused, CALLS)
                for name, (gate, fused) in CONTESTANTS.items()
            }
        else:
            contestants = {
                name: Tail(
                    args, SHAPE, torch.contiguous_format, gate, fused, CALLS
                )
                for name, (gate, fused) in CONTESTANTS.items()
            }
        times = measure(contestants, args)
        plain = statistics.median(times['plain']['seconds']) / CALLS
        for name, contestant in contestants.items():
            contestant.repeats = 1
            kernels, operations = count_launches(contestant.step)
            ratio = times[name]['ratio']
            print(
                f'{name}: {kernels} kernels of Triton, {operations} '
                f'operations of PyTorch; CPU time {ratio:.2f} of the plain '
                f"one's, {(ratio - 1) * plain * 1e6:.0f} µs more",
                flush=True,
            )
        if args.branches:
            count_in_networks()


if __name__ == '__main__':
    main()
