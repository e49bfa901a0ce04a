"""Pictures of the ladders: against plain loops."""

import numpy as np
import torch
from PIL import Image
from torch import Generator

from projects.ladder.pictures import draw_crops, normalise, read_pictures

from .made_up import pictures, write_cifar10


def crop(pixels, row, column, is_mirrored):
    """Of one picture, (C, 32, 32), by NumPy."""
    padded = np.pad(pixels, ((0, 0), (4, 4), (4, 4)))
    out = padded[:, row : row + 32, column : column + 32]
    return out[:, :, ::-1] if is_mirrored else out


def test_crops_are_those_of_a_loop():
    pixels, _ = pictures(24)
    found = draw_crops(pixels, Generator().manual_seed(3))
    again = Generator().manual_seed(3)
    rows = torch.randint(9, (24,), generator=again).tolist()
    columns = torch.randint(9, (24,), generator=again).tolist()
    mirrored = (torch.rand(24, generator=again) < 0.5).tolist()
    assert len({*rows}) > 4 and len({*columns}) > 4 and len({*mirrored}) == 2
    for k in range(24):
        np.testing.assert_array_equal(
            found[k], crop(pixels[k].numpy(), rows[k], columns[k], mirrored[k])
        )
    turned = ~torch.tensor(mirrored)
    found = draw_crops(pixels, Generator().manual_seed(3), turned)
    for k in range(24):
        np.testing.assert_array_equal(
            found[k],
            crop(pixels[k].numpy(), rows[k], columns[k], not mirrored[k]),
        )


def test_pictures_are_read_class_by_class(tmp_path):
    write_cifar10(tmp_path, train=3)
    pixels, labels = read_pictures(tmp_path, 'train', 1, None)
    assert labels.tolist() == [label for label in range(10) for _ in '12']
    path = tmp_path / 'cifar10' / 'train' / 'd' / '0002.jpg'
    np.testing.assert_array_equal(
        pixels[7], np.asarray(Image.open(path)).transpose(2, 0, 1)
    )
    first, _ = read_pictures(tmp_path, 'train', 0, 2)
    assert torch.equal(first[1::2], pixels[::2])


def test_pixels_are_normalised_by_channel():
    pixels, _ = pictures(2)
    wanted = [
        (pixels[:, c].numpy() / 255 - mean) / std
        for c, (mean, std) in enumerate(
            ((0.485, 0.229), (0.456, 0.224), (0.406, 0.225))
        )
    ]
    np.testing.assert_allclose(
        normalise(pixels), np.stack(wanted, 1), rtol=1e-5, atol=1e-6
    )
