"""Labelled pictures in memory, as a network takes them, and their folds."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Generator, Tensor
from tqdm import tqdm

FOLDS = 5

SHIFT = 16
"""Pictures are shifted by up to a sixteenth of their width."""


def decode(data: Iterable[tuple[Tensor, Any]]) -> tuple[Tensor, Tensor]:
    """Decode pictures once.

    Args:
        data (Iterable): Pairs of a picture (C, H, W), as the network takes
            it, and the number of its class.

    Returns:
        tuple: The pictures, (N, C, H, W), in float16, which is finer than the
        8 bits that they come from; and the numbers, (N,).
    """
    images = []
    labels = []
    for image, label in tqdm(data, 'decode'):
        images.append(image.half())
        labels.append(int(label))
    return torch.stack(images), torch.tensor(labels)


def check(
    images: Tensor, labels: Tensor, trainable: int, names: Sequence[Any]
) -> None:
    """Refuse pictures on which nothing can be compared.

    Args:
        images (Tensor): The pictures, (N, C, H, W).
        labels (Tensor): Numbers of their classes, (N,).
        trainable (int): How many may be trained on, the first ones. The
            others are tested on alone.
        names (Sequence): What messages call the pictures.

    Raises:
        ValueError: There is one class, one with fewer pictures to train on
            than folds, a picture in two classes or both to train and to test
            on, or one with values that are too large.
    """
    numbers = labels.tolist()
    if len({*numbers}) < 2:
        raise ValueError(
            'all pictures are of one class; a network that tells classes '
            'apart needs two'
        )
    for k, image in enumerate(images):
        if not image.isfinite().all():
            raise ValueError(
                f'{names[k]} has values that are no numbers in float16, which '
                f'ends at 65,504; let the transform scale pictures'
            )
    first: dict[str, int] = {}
    counts = Counter(numbers[:trainable])
    for k, number in enumerate(numbers):
        if counts[number] < FOLDS:
            raise ValueError(
                f'the class of {names[k]} has {counts[number]} pictures to '
                f'train on and needs {FOLDS}, one a fold; add pictures, or '
                f'leave the class out'
            )
        same = first.setdefault(digest([images[k]]), k)
        if numbers[same] != number:
            raise ValueError(
                f'{names[same]} and {names[k]} are one picture in two '
                f'classes; remove it from one of them'
            )
        if same < trainable <= k:
            raise ValueError(
                f'{names[same]}, to train on, and {names[k]}, to test on, are '
                f'one picture; remove one of them'
            )


def digest(tensors: Iterable[Tensor]) -> str:
    """The SHA-256 of tensors."""
    found = hashlib.sha256()
    for t in tensors:
        values: Any = t.detach().cpu().flatten().view(torch.uint8).numpy()
        found.update(values)
    return found.hexdigest()


def deal(labels: Tensor) -> Tensor:
    """Deal pictures into folds, class by class, in their order.

    Returns:
        Tensor: The fold of each, (N,). Sizes of folds differ by one at most,
        and so do those of a class in them.
    """
    folds = torch.empty_like(labels)
    folds[labels.argsort(stable=True)] = torch.arange(len(labels)) % FOLDS
    return folds


def augment(images: Tensor, generator: Generator) -> Tensor:
    """Shift a batch of pictures a little, and mirror about half of them.

    Args:
        images (Tensor): (N, C, H, W). What leaves them at one side comes in
            at the other one.
        generator (Generator): Decides all of it.
    """
    most = images.shape[-1] // SHIFT
    shift = torch.randint(-most, most + 1, (2,), generator=generator)
    shifted = images.roll(shift.tolist(), (2, 3))
    is_mirrored = torch.rand(len(images), generator=generator) < 0.5
    shifted[is_mirrored] = shifted[is_mirrored].flip(3)
    return shifted
