"""A whole training step of a network with steps, captured in a CUDA graph.

With few images the GPU waits for its host to launch kernels. A CUDA graph
launches forward, backward and optimizer at once. What was captured runs again
on the same memory, so these must not change from step to step:

- sizes and formats of images and labels, which are copied into fixed tensors;
- the mode of the model, what is frozen, and ``steps.fused``;
- numbers that Python reads, such as a learning rate: give it as a tensor.

Hooks and observers do not run. Without a GPU the same steps run uncaptured.
The capturing part was not run on a GPU. ::

    python examples/captured_training_step.py --images 8 --steps 20
"""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torchvision.models import resnet18

import mmstepnet


def capture(step):
    """A function that runs ``step`` again, launched as a whole.

    Args:
        step (Callable): A training step on fixed tensors, without arguments.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # kernels are compiled, memory is found
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def main(images, steps):
    torch.manual_seed(0)
    device = 'cuda' if torch.cuda.is_available() else 'cpu'
    model = resnet18(num_classes=10)
    mmstepnet.insert_steps(model, 'StepNet', init_step=None)
    model.to(device, memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=torch.tensor(0.01, device=device),
        momentum=0.9,
        foreach=True,
    )
    x = torch.zeros(images, 3, 64, 64, device=device).contiguous(
        memory_format=torch.channels_last
    )
    y = torch.zeros(images, dtype=torch.long, device=device)
    loss = torch.zeros((), device=device)

    def step():
        # The cache of autocast would hold weights of the first run.
        with torch.autocast(device, torch.bfloat16, cache_enabled=False):
            current = F.cross_entropy(model(x), y)
        optimizer.zero_grad(set_to_none=False)
        current.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss.copy_(current.detach())

    run = capture(step) if device == 'cuda' else step
    for k in range(steps):
        y.copy_(torch.randint(10, (images,)))  # a loader's batch comes here
        x.copy_(torch.randn(x.shape) + y.cpu()[:, None, None, None])
        run()
        if k % 5 == 4:
            print(f'step {k + 1}: loss {loss.item():.3f}')


if __name__ == '__main__':
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument('--images', type=int, default=8)
    parser.add_argument('--steps', type=int, default=20)
    main(**vars(parser.parse_args()))
