import numpy as np
import pytest

from mmstepnet.datasets import load_digit_split
from mmstepnet.datasets.digits_composer import compose, texture

SIZE = (96, 128)
SEEDS = range(300)


@pytest.fixture(scope='module')
def digits():
    return load_digit_split('train')[:2]


@pytest.fixture(scope='module')
def pictures(digits):
    return [compose(seed, *digits, SIZE) for seed in SEEDS]


def changed_pixels(seed, picture):
    """Where a picture differs from its canvas, which is drawn first."""
    canvas = texture(np.random.default_rng(seed), SIZE)
    return (picture != canvas).any(-1)


def test_box_of_a_lone_digit_is_tight_around_its_ink(pictures):
    lone = 0
    for seed, (picture, boxes, _) in zip(SEEDS, pictures):
        if len(boxes) != 1:
            continue
        rows, columns = np.nonzero(changed_pixels(seed, picture))
        assert boxes[0].tolist() == [
            columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
        lone += 1
    assert lone > 20


def test_every_box_is_tight_and_no_ink_is_outside(pictures):
    for seed, (picture, boxes, _) in zip(SEEDS, pictures):
        changed = changed_pixels(seed, picture)
        outside = np.ones(SIZE, bool)
        for x1, y1, x2, y2 in boxes:
            assert 0 <= x1 < x2 <= SIZE[1] and 0 <= y1 < y2 <= SIZE[0]
            ink = changed[y1:y2, x1:x2]
            for edge in (ink[0], ink[-1], ink[:, 0], ink[:, -1]):
                assert edge.any()
            outside[y1:y2, x1:x2] = False
        assert not changed[outside].any()


def test_empty_pictures_are_bare_canvas(pictures):
    empty = [seed for seed in SEEDS if not len(pictures[seed][1])]
    assert 0.03 < len(empty) / len(SEEDS) < 0.14
    for seed in empty:
        assert not changed_pixels(seed, pictures[seed][0]).any()


def test_labels_are_those_of_the_digits(digits):
    images, labels = digits
    for label in range(10):
        kind = labels == label
        for seed in range(5):
            got = compose(seed, images[kind], labels[kind], SIZE)[2]
            assert (got == label).all()


def test_sizes_vary_and_digits_overlap(pictures):
    lengths = np.concatenate([
        (boxes[:, 2:] - boxes[:, :2]).max(1) for _, boxes, _ in pictures])
    assert 10 < lengths.min() < 22 and 52 < lengths.max() <= 56
    overlapping = 0
    for _, boxes, _ in pictures:
        low = np.maximum(boxes[:, None, :2], boxes[None, :, :2])
        high = np.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
        shared = (high - low).clip(0).prod(-1)
        overlapping += (np.triu(shared, 1) > 0).any()
    assert overlapping > 60


def test_every_digit_keeps_95_percent_of_its_ink():
    # A solid square shows one colour, which tells how much is left of it.
    square = np.full((1, 8, 8), 255, np.uint8)
    touched = 0
    for seed in range(100):
        picture, boxes, _ = compose(seed, square, np.array([0]), SIZE)
        for x1, y1, x2, y2 in boxes:
            colours, counts = np.unique(
                picture[y1:y2, x1:x2].reshape(-1, 3), axis=0,
                return_counts=True)
            assert counts.max() >= 0.95 * counts.sum()
            touched += len(colours) > 1
    assert touched > 20


def test_small_canvas_is_refused(digits):
    with pytest.raises(ValueError, match='at least 56x56 px.*got 48x128'):
        compose(0, *digits, (48, 128))
