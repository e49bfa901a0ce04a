"""Time compiled and captured training steps on a GPU, within nine minutes.

Each row is printed when it is there, the most important first, so that a cut
leaves what was found: ResNet-50's training with 256 images under
``torch.compile``; 32 and 8 images in eager mode, with the whole step captured
in a CUDA graph, and by ``mode='reduce-overhead'``; then inference, float32
and SE. Times are medians over those of the plain network in the same rounds.
Without a GPU all runs small, compiled by Dynamo alone. Values are checked by
``pytest -m gpu``. ::

    timeout 540 python -m benchmarks.gpu_compiled
"""

import argparse
import statistics

import torch
import torch._dynamo
from torchvision.models import resnet18, resnet50

from benchmarks.rounds import Timed, measure
from mmstepnet import insert_steps, steps

DRY = not torch.cuda.is_available()
DEVICE = 'cpu' if DRY else 'cuda'


class Contestant(Timed):
    """A step of a ResNet-50.

    Args:
        args (Namespace): Device and clock.
        name (str): 'plain', or a gate, perhaps 'GATE reference'.
        images (int): In a batch.
        dtype (torch.dtype, optional): Of autocast.
        training (bool): Whether it learns.
        how (str): 'eager', 'captured', 'compiled' or 'reduce-overhead'.
        repeats (int): Steps that are timed together.
    """

    def __init__(self, args, name, images, dtype, training, how, repeats):
        super().__init__(args)
        torch.manual_seed(0)
        model, (gate, *path) = (resnet18 if DRY else resnet50)(), name.split()
        if gate != 'plain':
            insert_steps(model, gate, init_step=None)
        model.to(DEVICE, memory_format=torch.channels_last).train(training)
        side = 64 if DRY else 224
        self.images = torch.randn(images, 3, side, side, device=DEVICE).to(
            memory_format=torch.channels_last
        )
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
            self.launch = self.captured()

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

    def captured(self):
        """The same step, launched as one CUDA graph."""
        side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.take()
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph):
            self.take()
        return graph.replay

    def step(self):
        for _ in range(self.repeats):
            self.launch()


def row(
    names,
    images,
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
    if DRY:
        args.rounds, args.warmup, images, repeats = 2, 1, 2, 1
    torch._dynamo.reset()
    try:
        times = measure(
            {
                name: Contestant(
                    args, name, images, dtype, training, how, repeats
                )
                for name in names
            },
            args,
        )
    except Exception as error:  # the other rows are wanted all the more
        print(f'{how}, {images} images | FAILED: {error}', flush=True)
        return
    for name, found in times.items():
        print(
            f'{how}, {"training" if training else "inference"}, {images} '
            f'images, {str(dtype or torch.float32)[6:]} | {name} | '
            f'{statistics.median(found["seconds"]) / repeats * 1e3:.2f} ms '
            f'| {found["ratio"]:.3f} of plain',
            flush=True,
        )


def main():
    argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args()
    both = ['plain', 'StepNet']
    row([*both, 'StepNet reference'], 256)
    for images in (32, 8):
        for how in ('eager', 'captured', 'reduce-overhead'):
            row(both, images, how=how, rounds=20, repeats=5)
    row([*both, 'StepNet reference'], 256, training=False)
    row(both, 8, training=False, how='reduce-overhead', rounds=20, repeats=5)
    row(both, 256, None)
    row(['plain', 'SE', 'SE reference'], 256)


if __name__ == '__main__':
    main()
