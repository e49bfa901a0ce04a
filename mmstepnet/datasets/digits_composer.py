"""Pictures for detection, composed from handwritten digits."""

from collections.abc import Sequence

import cv2
import numpy as np

RECIPE = 1
"""Raise it when equal seeds give other pictures than before."""

EMPTY_SHARE = 0.08
MOST_DIGITS = 8
SIZES = (20, 56)
ASPECTS = (0.8, 1.25)
LEAST_OPACITY = 0.3
MOST_HIDDEN = 0.05
PLACES_TRIED = 20
# Cells a side and standard deviation of each layer of the texture.
TEXTURE_LAYERS = ((2, 20.0), (4, 15.0), (8, 12.0), (16, 8.0), (32, 6.0))
CANVAS_COLOURS = (20, 110)
INK_COLOURS = (150, 255)


def compose(
    seed: int | Sequence[int],
    digits: np.ndarray,
    labels: np.ndarray,
    size: tuple[int, int],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compose a picture of digits of several sizes on a textured canvas.

    About one picture in twelve is empty, the others hold up to eight light
    digits, 20 to 56 px long, on a darker canvas, in any colours. Digits may
    touch and their boxes overlap, but each keeps 95 % of its ink or more.

    Args:
        seed (int | Sequence[int]): Equal seeds give equal pictures.
        digits (np.ndarray): Digits to draw from, (N, 8, 8) in uint8.
        labels (np.ndarray): Their classes, (N,).
        size (tuple[int, int]): Height H and width W in px.

    Returns:
        tuple: Picture (H, W, 3), uint8; boxes (K, 4), int64 in px as x1, y1,
        x2, y2 with x2 and y2 exclusive, tight around the ink that is not
        hidden; labels (K,).

    Raises:
        ValueError: The largest digit does not fit into ``size``.
    """
    if min(size) < SIZES[1]:
        raise ValueError(
            f'a canvas needs at least {SIZES[1]}x{SIZES[1]} px '
            f'to hold the largest digit, got '
            f'{size[0]}x{size[1]}'
        )
    rng = np.random.default_rng(seed)
    picture = texture(rng, size).astype(np.float32)
    # Which digit a pixel shows, -1 for the canvas.
    owner = np.full(size, -1)
    chosen = []
    ink_sizes = []
    empty = rng.random() < EMPTY_SHARE
    for _ in range(0 if empty else rng.integers(1, MOST_DIGITS + 1)):
        pick = rng.integers(len(digits))
        opacity = _scale(rng, digits[pick])
        place = _find_place(rng, owner, opacity > 0, ink_sizes)
        if place is None:
            continue
        area = picture[place]
        ink = rng.uniform(*INK_COLOURS, 3).astype(np.float32)
        area += opacity[..., None] * (ink - area)
        owner[place][opacity > 0] = len(chosen)
        chosen.append(pick)
        ink_sizes.append(np.count_nonzero(opacity))
    boxes = [_extent(owner == index) for index in range(len(chosen))]
    return (
        np.rint(picture).astype(np.uint8),
        np.array(boxes, dtype=np.int64).reshape(-1, 4),
        labels[np.array(chosen, dtype=np.int64)],
    )


def texture(rng: np.random.Generator, size: tuple[int, int]) -> np.ndarray:
    """Draw a coloured canvas of smooth noise on several scales.

    Args:
        rng (np.random.Generator): Source of randomness.
        size (tuple[int, int]): Height H and width W in px.

    Returns:
        np.ndarray: Canvas (H, W, 3), uint8.
    """
    height, width = size
    canvas = np.full((height, width, 3), rng.uniform(*CANVAS_COLOURS, 3))
    for cells, deviation in TEXTURE_LAYERS:
        layer = deviation * rng.standard_normal((cells, cells, 3))
        canvas += cv2.resize(
            layer, (width, height), interpolation=cv2.INTER_CUBIC
        )
    return np.rint(canvas.clip(0, 255)).astype(np.uint8)


def _scale(rng: np.random.Generator, digit: np.ndarray) -> np.ndarray:
    """Bring a digit to a random size, as opacity from 0 to 1."""
    x1, y1, x2, y2 = _extent(digit > 0)
    ink = digit[y1:y2, x1:x2].astype(np.float32) / 255
    width = (x2 - x1) * rng.uniform(*ASPECTS)
    height = y2 - y1
    length = np.exp(rng.uniform(*np.log(SIZES)))
    scale = length / max(width, height)
    opacity = cv2.resize(
        ink,
        (max(round(width * scale), 1), max(round(height * scale), 1)),
        interpolation=cv2.INTER_CUBIC,
    ).clip(0, 1)
    # A faint rim would make the box larger than what can be seen.
    opacity[opacity < LEAST_OPACITY] = 0
    return opacity


def _find_place(
    rng: np.random.Generator,
    owner: np.ndarray,
    ink: np.ndarray,
    ink_sizes: list[int],
) -> tuple[slice, slice] | None:
    """Find where the ink hides little of the digits that lie there."""
    height, width = ink.shape
    for _ in range(PLACES_TRIED):
        y = rng.integers(owner.shape[0] - height, endpoint=True)
        x = rng.integers(owner.shape[1] - width, endpoint=True)
        place = slice(y, y + height), slice(x, x + width)
        left = owner.copy()
        left[place][ink] = -1
        if all(
            np.count_nonzero(left == index) >= (1 - MOST_HIDDEN) * size
            for index, size in enumerate(ink_sizes)
        ):
            return place
    return None


def _extent(mask: np.ndarray) -> tuple[int, int, int, int]:
    """Tight box around a mask's pixels: x1, y1, x2, y2, ends exclusive."""
    rows, columns = np.nonzero(mask)
    return (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
