"""What ``tools/publish_model.py`` does."""

import hashlib
import io
import json
from argparse import Namespace
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from mmstepnet.files import write_whole

from .checkpoint import read_checkpoint

META = ('cfg', 'dataset_meta', 'epoch', 'iter', 'mmengine_version')
"""What loading and inference read; the rest tells of the training run."""

DIGITS = 8
"""Of the hash in the name, as PyTorch's hub checks it."""


def publish(args: Namespace) -> None:
    """Strip the checkpoint of a command line, and write it."""
    weights, meta = strip(read_checkpoint(args.checkpoint))
    buffer = io.BytesIO()
    torch.save(dict(meta=meta, state_dict=weights), buffer)
    write(buffer.getvalue(), args.out, '.pth')
    # Arrays, which data sets of poses have, become lists.
    described = {
        key: json.dumps(value, default=lambda array: array.tolist())
        for key, value in meta.items()
    }
    write(save(weights, described), args.out, '.safetensors')


def strip(checkpoint: dict) -> tuple[dict[str, Tensor], dict]:
    """Weights, each with memory of its own, and the metadata to keep.

    Raises:
        ValueError: There are no weights, or some are not finite.
    """
    weights = {
        name.removeprefix('module.'): value.detach().clone().contiguous()
        for name, value in checkpoint['state_dict'].items()
        if isinstance(value, Tensor)
    }
    broken = [
        name for name, value in weights.items() if not value.isfinite().all()
    ]
    if broken or not weights:
        raise ValueError(
            'not published, because these weights are not '
            f'finite: {", ".join(broken)}'
            if broken
            else 'the checkpoint holds no weights'
        )
    meta = checkpoint['meta']
    return weights, {key: meta[key] for key in META if key in meta}


def write(content: bytes, out: Path, ending: str) -> None:
    """Write bytes under a name that ends in their hash."""
    digest = hashlib.sha256(content).hexdigest()[:DIGITS]
    path = out.with_name(f'{out.name}-{digest}{ending}')
    write_whole(path, content)
    print(f'{path}: {len(content) / 2**20:.1f} MiB')
