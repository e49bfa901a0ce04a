"""Time training steps on a GPU, eager, captured and compiled, in 300 s.

Each row is printed when it is there, the most important first, so that a cut
leaves what was found; no row is begun after ``--seconds``. First gradients
are compared with float64's; then come ViT-S and ConvNeXt-T, by timm, whose
steps stand at branches' ends: 256 and 32 images, in eager mode and with the
whole step captured in a CUDA graph. Then ResNet-50: 256 images under
``torch.compile``; 32 and 8 in eager mode, captured, and by
``mode='reduce-overhead'``; inference, float32 and SE. Times are medians over
those of the plain network in the same rounds. Without a GPU all runs small,
compiled by Dynamo alone. Other values are checked by ``pytest -m gpu``. ::

    timeout 540 python -m benchmarks.gpu_compiled
"""

import argparse
import copy
import statistics
import time

import timm
import torch
import torch._dynamo
from torchvision.models import resnet18, resnet50

from benchmarks.rounds import Timed, measure
from mmstepnet import insert_steps, steps
from mmstepnet.checks import positive_int
from mmstepnet.steps.tail import dispatch

DRY = not torch.cuda.is_available()
DEVICE = 'cpu' if DRY else 'cuda'
SIDE = 64 if DRY else 224
if DRY:
    dispatch.FEWEST_VALUES = 0  # or small maps take the reference path
    dispatch.FEWEST_OF_AN_IMAGE = 0


def vit():
    """ViT-S, or a small one."""
    small = dict(depth=2, embed_dim=96, num_heads=2, img_size=SIDE)
    name = 'vit_small_patch16_224'
    return timm.create_model(name, **(small if DRY else {}))


def convnext():
    """ConvNeXt-T, or a small one."""
    small = dict(depths=(2, 2, 2, 2), dims=(16, 32, 48, 64))
    return timm.create_model('convnext_tiny', **(small if DRY else {}))


NETWORKS = {
    'ViT-S': vit,
    'ConvNeXt-T': convnext,
    'ResNet-50': resnet18 if DRY else resnet50,
}
BOTH = 'plain', 'StepNet'
ALL = *BOTH, 'StepNet reference', 'SE'


def build(network, gate, init_step=None):
    """A network with a gate, which may be 'plain'."""
    torch.manual_seed(0)
    model = NETWORKS[network]().to(DEVICE, memory_format=torch.channels_last)
    if gate != 'plain':
        example = torch.randn(2, 3, SIDE, SIDE, device=DEVICE)
        insert_steps(model, gate, init_step=init_step, example=example)
    return model


def draw(images):
    """Random images."""
    return torch.randn(images, 3, SIDE, SIDE, device=DEVICE).to(
        memory_format=torch.channels_last
    )


class Contestant(Timed):
    """A step of a network.

    Args:
        args (Namespace): Device and clock.
        network (str): A key of :data:`NETWORKS`.
        name (str): 'plain', or a gate, perhaps 'GATE reference'.
        images (int): In a batch.
        dtype (torch.dtype, optional): Of autocast.
        training (bool): Whether it learns.
        how (str): 'eager', 'captured', 'compiled' or 'reduce-overhead'.
        repeats (int): Steps that are timed together.
        pool (tuple, optional): Memory that the captured graphs of a row,
            which are launched in turn, share.
    """

    def __init__(
        self,
        args,
        network,
        name,
        images,
        dtype,
        training,
        how,
        repeats,
        pool=None,
    ):
        super().__init__(args)
        gate, *path = name.split()
        model = build(network, gate).train(training)
        self.images = draw(images)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        self.fused, self.training, self.how = not path, training, how
        self.dtype, self.repeats, self.model = dtype, repeats, model
        if how in ('compiled', 'reduce-overhead'):
            kind = (
                dict(backend='eager')
                if DRY
                else dict(mode=None if how == 'compiled' else how)
            )
            self.model = torch.compile(model, fullgraph=True, **kind)
        self.launch = self.take
        if how == 'captured' and not DRY:
            self.launch = self.captured(pool)

    def take(self):
        """One step."""
        if self.how == 'reduce-overhead' and not DRY:
            torch.compiler.cudagraph_mark_step_begin()
        with (
            steps.fused(self.fused),
            torch.set_grad_enabled(self.training),
            torch.autocast(
                DEVICE,
                self.dtype,
                cache_enabled=False,
                enabled=self.dtype is not None,
            ),
        ):
            loss = self.model(self.images).float().square().mean()
        if self.training:
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=self.how != 'captured')

    def captured(self, pool):
        """The same step, launched as one CUDA graph."""
        side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.take()
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph, pool=pool):
            self.take()
        return graph.replay

    def step(self):
        for _ in range(self.repeats):
            self.launch()


def row(
    names,
    images,
    network='ResNet-50',
    dtype=torch.bfloat16,
    training=True,
    how='compiled',
    rounds=10,
    repeats=2,
):
    """Print the times of some networks in one setting."""
    args = argparse.Namespace(
        device=DEVICE, clock='wall', rounds=rounds, warmup=3
    )
    pool = None
    if DRY:
        args.rounds, args.warmup, images, repeats = 2, 1, 2, 1
    elif how == 'captured':
        pool = torch.cuda.graph_pool_handle()
    torch._dynamo.reset()
    setting = network, how, 'training' if training else 'inference'
    title = f'{", ".join(setting)}, {images} images'
    try:
        contestants = {
            name: Contestant(
                args,
                network,
                name,
                images,
                dtype,
                training,
                how,
                repeats,
                pool,
            )
            for name in names
        }
        times = measure(contestants, args)
    except Exception as error:  # the other rows are wanted all the more
        print(f'{title} | FAILED: {error}', flush=True)
        return
    for name, found in times.items():
        print(
            f'{title}, {str(dtype or torch.float32)[6:]} | {name} | '
            f'{statistics.median(found["seconds"]) / repeats * 1e3:.2f} ms '
            f'| {found["ratio"]:.3f} of plain',
            flush=True,
        )


def gradients(model, images, fused):
    """All gradients, one vector in float64."""
    model.zero_grad()
    with steps.fused(fused):
        model(images).square().mean().backward()
    return torch.cat(
        [
            p.grad.double().flatten()
            for p in model.parameters()
            if p.grad is not None
        ]
    )


def compare(network):
    """Print how far gradients of float32 are from float64's.

    Gates have moved, so that their derivatives count.
    """
    model, images = build(network, 'StepNet', 1.0), draw(4)
    for name, p in model.named_parameters():
        if 'attention' in name and p.dim() == 1:
            torch.nn.init.normal_(p, std=0.5)
    twin = copy.deepcopy(model).double()
    exact = gradients(twin, images.double(), False)
    errors = {
        path: (gradients(model, images, fused) - exact).norm() / exact.norm()
        for path, fused in (('by hand', True), ('reference path', False))
    }
    found, reference = errors.values()
    print(
        f'{network}, gradients, from float64 | '
        + ', '.join(f'{path} {error:.1e}' for path, error in errors.items())
        + (' | WRONG' if found > 2 * reference + 1e-5 else ' | right'),
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        '--seconds',
        type=positive_int,
        default=270,
        help='no row is begun after so many. Default: %(default)s',
    )
    end = time.monotonic() + parser.parse_args().seconds
    # No TF32, which would hide what differs.
    torch.backends.cudnn.allow_tf32 = False
    for network in 'ViT-S', 'ConvNeXt-T':
        compare(network)
    torch.backends.cudnn.allow_tf32 = True
    few = dict(rounds=15, repeats=3)
    rows = [
        (ALL, images, dict(network=network, how=how, **options))
        for images, how, options in (
            (256, 'eager', {}),
            (32, 'captured', few),
            (32, 'eager', few),
            (256, 'captured', {}),
        )
        for network in ('ViT-S', 'ConvNeXt-T')
    ]
    rows.append(([*BOTH, 'StepNet reference'], 256, {}))
    rows += [
        (BOTH, images, dict(how=how, rounds=20, repeats=5))
        for images in (32, 8)
        for how in ('eager', 'captured', 'reduce-overhead')
    ]
    rows += [
        ([*BOTH, 'StepNet reference'], 256, dict(training=False)),
        (
            BOTH,
            8,
            dict(training=False, how='reduce-overhead', rounds=20, repeats=5),
        ),
        (BOTH, 256, dict(dtype=None)),
        (['plain', 'SE', 'SE reference'], 256, {}),
    ]
    for k, (names, images, options) in enumerate(rows):
        if time.monotonic() > end:
            print(f'time is up: {len(rows) - k} rows were not begun')
            break
        row(names, images, **options)


if __name__ == '__main__':
    main()
