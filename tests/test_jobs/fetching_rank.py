"""Job of test_patches.py: two ranks, one of which cannot fetch a file."""

import sys

import torch
import torch.distributed as dist
from mmengine.runner import CheckpointLoader

from mmstepnet.jobs.patches import patch_mmengine

torch.hub.set_dir(sys.argv[1])
dist.init_process_group('gloo')
patch_mmengine()


def fetch(url, path):
    raise OSError('no route to host')


torch.hub.download_url_to_file = fetch
CheckpointLoader.load_checkpoint('https://models.example/net-1.pth')
