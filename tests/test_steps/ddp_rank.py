"""One of two processes of test_distributed.py, given the job's folder."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tests.test_steps.insertion import outputs

folder = Path(sys.argv[1])
dist.init_process_group('gloo')
rank = dist.get_rank()
model, images = torch.load(folder / 'job.pth', weights_only=False)
mine = images[rank:rank + 1]
wrapped = DistributedDataParallel(model)


def backward(batch):
    wrapped.zero_grad()
    sum(o.square().mean() for o in outputs(wrapped, batch)).backward()


backward(mine)  # in eval mode: a norm's statistics would be each rank's own
grads = {name: p.grad.clone() for name, p in model.named_parameters()
         if p.grad is not None}
model.train()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(2):
    backward(images.roll(rank, 3) + rank)
    optimizer.step()
torch.save(
    dict(grads=grads, weights={n: p.detach()
                               for n, p in model.named_parameters()}),
    folder / f'{rank}.pth')
dist.destroy_process_group()
