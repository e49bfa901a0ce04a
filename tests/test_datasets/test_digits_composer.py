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


def test_every_box_is_tight_and_no_ink_is_outside(pictures):
    lengths, empty, overlapping = [], 0, 0
    for seed, (picture, boxes, _) in zip(SEEDS, pictures):
        # The canvas is drawn first.
        canvas = texture(np.random.default_rng(seed), SIZE)
        changed = (picture != canvas).any(-1)
        covered = np.zeros(SIZE, int)
        for x1, y1, x2, y2 in boxes:
            assert 0 <= x1 < x2 <= SIZE[1] and 0 <= y1 < y2 <= SIZE[0]
            ink = changed[y1:y2, x1:x2]
            for edge in (ink[0], ink[-1], ink[:, 0], ink[:, -1]):
                assert edge.any()
            covered[y1:y2, x1:x2] += 1
            lengths.append(max(x2 - x1, y2 - y1))
        assert not changed[covered == 0].any()
        empty += len(boxes) == 0
        overlapping += covered.max() > 1
    assert 10 < min(lengths) < 22 and 52 < max(lengths) <= 56
    assert 0.03 < empty / len(SEEDS) < 0.14 and overlapping > 60


def test_labels_are_those_of_the_digits(digits):
    images, labels = digits
    for label in range(10):
        kind = labels == label
        for seed in range(5):
            got = compose(seed, images[kind], labels[kind], SIZE)[2]
            assert (got == label).all()
    with pytest.raises(ValueError, match='at least 56x56 px.*got 48x128'):
        compose(0, *digits, (48, 128))


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
