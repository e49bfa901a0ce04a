import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from projects.metric_attention.datasets import MNISTPoints, Moon
from projects.metric_attention.datasets.points import Points

MNIST = next((p for p in (Path('data/mnist'), Path('../shared/data/mnist'))
              if p.is_dir()), None)


def write_idx(path, array):
    """The format, from its public description."""
    content = struct.pack('>BBBB', 0, 0, 8, array.ndim)
    content += struct.pack(f'>{array.ndim}I', *array.shape)
    content += array.astype(np.uint8).tobytes()
    if path.suffix == '.gz':
        content = gzip.compress(content, mtime=0)
    path.write_bytes(content)


def write_mnist(folder, suffix='.gz', labels=(3, 0, 9)):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (3, 28, 28))
    write_idx(folder / f'train-images-idx3-ubyte{suffix}', images)
    write_idx(folder / f'train-labels-idx1-ubyte{suffix}', np.array(labels))
    return images


@pytest.mark.parametrize('suffix', ['.gz', ''])
def test_idx_files(tmp_path, suffix):
    images = write_mnist(tmp_path, suffix)
    dataset = MNISTPoints(str(tmp_path))
    assert len(dataset) == 3
    expected = (images[1].reshape(784) / 255 - 0.1307) / 0.3081
    np.testing.assert_allclose(dataset[1]['inputs'], expected, atol=1e-5)
    assert [int(dataset[i]['labels']) for i in range(3)] == [3, 0, 9]


@pytest.mark.skipif(MNIST is None, reason='no MNIST in data/mnist')
@pytest.mark.parametrize('split, stem, count', [
    ('train', 'train', 60_000), ('test', 't10k', 10_000)])
def test_mnist_against_raw_bytes(split, stem, count):
    dataset = MNISTPoints(str(MNIST), split)
    with gzip.open(MNIST / f'{stem}-images-idx3-ubyte.gz') as file:
        pixels = np.frombuffer(file.read()[16:], np.uint8)
    with gzip.open(MNIST / f'{stem}-labels-idx1-ubyte.gz') as file:
        labels = np.frombuffer(file.read()[8:], np.uint8)
    pixels = pixels.reshape(count, 784)
    assert len(dataset) == count
    some = slice(None, None, 7)
    back = (dataset.features[some] * 0.3081 + 0.1307) * 255
    assert (back.round().numpy() == pixels[some]).all()
    assert (dataset.labels.numpy() == labels).all()
    if split == 'train':
        counts = np.bincount(pixels.ravel(), minlength=256) / pixels.size
        ink = np.arange(256) / 255
        mean = (counts * ink).sum()
        assert abs(mean - 0.1307) < 1e-4
        assert abs(((counts * ink**2).sum() - mean**2)**0.5 - 0.3081) < 1e-4


@pytest.mark.parametrize('damage, error, match', [
    (lambda f: (f / 'train-labels-idx1-ubyte.gz').unlink(),
     FileNotFoundError, 'train-labels-idx1-ubyte.gz; put'),
    (lambda f: (f / 'train-images-idx3-ubyte.gz').write_bytes(b'no gzip'),
     ValueError, 'no idx file'),
    (lambda f: write_idx(f / 'train-labels-idx1-ubyte.gz', np.zeros(2)),
     ValueError, r'\(3, 784\) and \(2,\)'),
    (lambda f: write_idx(f / 'train-labels-idx1-ubyte.gz',
                         np.zeros((3, 1))), ValueError, '1 dimensions'),
    (lambda f: write_idx(f / 'train-labels-idx1-ubyte.gz',
                         np.array([0, 10, 1])), ValueError, '0 to 10'),
])
def test_damaged_mnist(tmp_path, damage, error, match):
    write_mnist(tmp_path)
    damage(tmp_path)
    with pytest.raises(error, match=match):
        MNISTPoints(str(tmp_path))


def test_moon_is_two_half_circles():
    dataset = Moon(size=200, noise=0)
    x, y = dataset.features.T
    upper = dataset.labels == 0
    assert upper.sum() == 100
    on_first = (x**2 + y**2 - 1).abs() < 1e-5
    on_second = ((x - 1)**2 + (y - 0.5)**2 - 1).abs() < 1e-5
    assert on_first[upper].all() and (y[upper] > -1e-6).all()
    assert on_second[~upper].all() and (y[~upper] < 0.5 + 1e-6).all()


def test_moon_splits_differ_and_stay():
    train, test = Moon('train'), Moon('test')
    assert len(train) == len(test) == 1000
    assert torch.equal(Moon('train').features, train.features)
    nearest = torch.cdist(train.features, test.features).min()
    assert nearest > 0


@pytest.mark.parametrize('kwargs, match', [
    (dict(split='val'), "'val'"), (dict(size=1), 'got 1 and'),
    (dict(noise=-0.1), '-0.1'), (dict(noise=float('nan')), 'nan')])
def test_bad_moon(kwargs, match):
    with pytest.raises(ValueError, match=match):
        Moon(**kwargs)


@pytest.mark.parametrize('features, labels, match', [
    (torch.tensor([[1., float('nan')], [0., 0.]]), torch.tensor([0, 1]),
     'point 0 are not finite'),
    (torch.zeros(0, 2), torch.zeros(0), 'at least one'),
    (torch.zeros(2, 2), torch.tensor([0, 2]), '0 to 2'),
    (torch.zeros(2, 2), torch.tensor([-1, 0]), '-1 to 0')])
def test_bad_points(features, labels, match):
    with pytest.raises(ValueError, match=match):
        Points(features, labels, ('a', 'b'))
