"""Pictures that the tests of the ladders make up."""

import numpy as np
import torch
from PIL import Image


def pictures(count, seed=0):
    """Pixels and classes, the same ones in every process."""
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randint(
            256, (count, 3, 32, 32), generator=generator, dtype=torch.uint8
        ),
        torch.arange(count) % 10,
    )


def write_cifar10(data, **counts):
    """JPEG files of ten classes, ``counts`` of each for each split."""
    generator = np.random.default_rng(0)
    for split, count in counts.items():
        for label in 'abcdefghij':
            folder = data / 'cifar10' / split / label
            folder.mkdir(parents=True)
            for k in range(count):
                pixels = generator.integers(256, size=(32, 32, 3))
                Image.fromarray(pixels.astype('uint8')).save(
                    folder / f'{k:04}.jpg'
                )
