"""CIFAR-10 as JPEG files of quality 75, in memory."""

from functools import cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Generator, Tensor

CLASSES = 10
SHIFT = 4
"""Pixels by which a picture is shifted at most, in training."""


@cache
def read_pictures(
    data: Path, split: str, start: int, stop: int | None
) -> tuple[Tensor, Tensor]:
    """Pictures of each class, by the sorted names of their files.

    Args:
        data (Path): Folder that holds ``cifar10/SPLIT/CLASS/*.jpg``.
        split (str): 'train' or 'test'.
        start (int): The first picture of each class.
        stop (int, optional): Behind the last one; None is the end.

    Returns:
        tuple: Pixels, (N, 3, 32, 32) in uint8, and classes, (N,).
    """
    pixels, labels = [], []
    for label, folder in enumerate(
        sorted((data / 'cifar10' / split).iterdir())
    ):
        for path in sorted(folder.iterdir())[start:stop]:
            pixels.append(np.asarray(Image.open(path).convert('RGB')))
            labels.append(label)
    return (
        torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2),
        torch.tensor(labels),
    )


def draw_crops(
    pixels: Tensor, generator: Generator, mirrored: Tensor | None = None
) -> Tensor:
    """Shift pictures by up to four pixels and mirror half of them.

    Args:
        pixels (Tensor): (N, C, H, W), on any device.
        generator (Generator): Decides all of it, on the CPU.
        mirrored (Tensor, optional): Which pictures are mirrored, (N,) of
            booleans, where that is not drawn. Defaults to None.
    """
    n, channels, _, side = pixels.shape
    padded = F.pad(pixels, (SHIFT, SHIFT, SHIFT, SHIFT))
    rows, columns = (
        torch.randint(2 * SHIFT + 1, (n, 1), generator=generator)
        + torch.arange(side)
        for _ in range(2)
    )
    if mirrored is None:
        mirrored = torch.rand(n, generator=generator) < 0.5
    columns = torch.where(mirrored[:, None], columns.flip(1), columns)
    places = (
        torch.arange(n)[:, None, None, None],
        torch.arange(channels)[:, None, None],
        rows[:, None, :, None],
        columns[:, None, None, :],
    )
    return padded[tuple(place.to(pixels.device) for place in places)]


def normalise(pixels: Tensor) -> Tensor:
    """What the ResNets take, by the mean and deviation of ImageNet."""
    mean, std = torch.tensor(
        [[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]], device=pixels.device
    )[..., None, None]
    return (pixels.float() / 255 - mean) / std


def enlarge(pixels: Tensor) -> Tensor:
    """What EfficientNet-Lite0 takes here: 96 pixels, between -1 and 1."""
    x = F.interpolate(pixels.float() / 255 * 2 - 1, size=96, mode='bicubic')
    return x.contiguous(memory_format=torch.channels_last)
