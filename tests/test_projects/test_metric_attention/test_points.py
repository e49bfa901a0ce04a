"""Moon, and MNIST as points."""

import gzip
import struct

import numpy as np
import pytest
import torch

from projects.metric_attention.datasets import MNISTPoints, Moon


def write_idx(path, array):
    """The format, from its public description."""
    content = struct.pack('>BBBB', 0, 0, 8, array.ndim)
    content += struct.pack(f'>{array.ndim}I', *array.shape)
    content += array.astype(np.uint8).tobytes()
    path.write_bytes(
        gzip.compress(content, mtime=0) if path.suffix == '.gz' else content
    )


@pytest.mark.parametrize('suffix', ['.gz', ''])
def test_idx_files(tmp_path, suffix):
    images = np.random.default_rng(0).integers(0, 256, (3, 28, 28))
    write_idx(tmp_path / f'train-images-idx3-ubyte{suffix}', images)
    with pytest.raises(FileNotFoundError, match='labels-idx1-ubyte.gz; put'):
        MNISTPoints(str(tmp_path))
    write_idx(
        tmp_path / f'train-labels-idx1-ubyte{suffix}', np.array([3, 0, 9])
    )
    dataset = MNISTPoints(str(tmp_path))
    assert len(dataset) == 3
    expected = (images[1].reshape(784) / 255 - 0.1307) / 0.3081
    np.testing.assert_allclose(dataset[1]['inputs'], expected, atol=1e-5)
    assert [int(dataset[i]['labels']) for i in range(3)] == [3, 0, 9]
    assert dataset.__getitems__([2, 0])['labels'].tolist() == [9, 3]


def test_moon_is_two_half_circles():
    dataset = Moon(size=200, noise=0)
    x, y = dataset.features.T
    upper = dataset.labels == 0
    assert upper.sum() == 100
    on_first = (x**2 + y**2 - 1).abs() < 1e-5
    on_second = ((x - 1) ** 2 + (y - 0.5) ** 2 - 1).abs() < 1e-5
    assert on_first[upper].all() and (y[upper] > -1e-6).all()
    assert on_second[~upper].all() and (y[~upper] < 0.5 + 1e-6).all()


def test_moon_splits_differ_and_stay():
    train, test = Moon('train'), Moon('test')
    assert len(train) == len(test) == 1000
    assert torch.equal(Moon('train').features, train.features)
    assert torch.cdist(train.features, test.features).min() > 0
    with pytest.raises(ValueError, match="'val'"):
        Moon('val')
