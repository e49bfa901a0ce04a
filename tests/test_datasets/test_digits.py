import numpy as np
from sklearn.datasets import load_digits

from mmstepnet.datasets import DigitsClassification, load_digit_split


def test_splits_share_no_digit_and_lose_none():
    """Each has its share of every class, and MMPretrain's form of images."""
    digits = load_digits()
    positions = []
    for split, share in (('train', 0.8), ('val', 0.2)):
        images, labels, chosen = load_digit_split(split)
        positions.extend(chosen)
        assert images.dtype == np.uint8 and images.max() == 255
        np.testing.assert_array_equal(
            np.rint(images / 255 * 16), digits.images[chosen])
        np.testing.assert_array_equal(labels, digits.target[chosen])
        counts = np.bincount(labels) - share * np.bincount(digits.target)
        assert np.abs(counts).max() <= 1
        dataset = DigitsClassification(split)
        assert dataset.metainfo['classes'] == tuple('0123456789')
        assert dataset.get_gt_labels().tolist() == labels.tolist()
        np.testing.assert_array_equal(
            dataset[5]['img'], images[5][..., None].repeat(3, -1))
    np.testing.assert_array_equal(np.sort(positions), np.arange(1797))
    # Positions are digits: scikit-learn holds none twice.
    assert len(np.unique(digits.data, axis=0)) == 1797
