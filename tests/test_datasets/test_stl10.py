"""STL-10 from binary files, written here as its authors describe them.

"The values are stored column by column, one channel at a time", labels run
from 1 to 10. The files' checksums are set to those of ours.
"""

import hashlib

import numpy as np
import pytest
import torchvision.datasets
from mmengine.registry import init_default_scope
from mmpretrain.registry import DATASETS

FILES = ('train_X.bin', 'train_y.bin', 'unlabeled_X.bin', 'test_X.bin',
         'test_y.bin')


@pytest.fixture
def stl10(tmp_path, monkeypatch):
    """Folder and training images, (N, H, W, C)."""
    folder = tmp_path / 'stl10_binary'
    folder.mkdir()
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (3, 96, 96, 3), dtype=np.uint8)
    labels = np.array([0, 9, 4])
    columns = images.transpose(0, 3, 2, 1)  # image, channel, column, row
    columns.tofile(folder / 'train_X.bin')
    (labels + 1).astype(np.uint8).tofile(folder / 'train_y.bin')
    columns[:1].tofile(folder / 'unlabeled_X.bin')
    columns[:2].tofile(folder / 'test_X.bin')
    np.array([3, 7], np.uint8).tofile(folder / 'test_y.bin')
    (folder / 'class_names.txt').write_text('airplane\n')
    sums = [[name, hashlib.md5((folder / name).read_bytes()).hexdigest()]
            for name in FILES]
    host = torchvision.datasets.STL10
    monkeypatch.setattr(host, 'train_list', sums[:3])
    monkeypatch.setattr(host, 'test_list', sums[3:])
    return tmp_path, images


def build(root, **kwargs):
    init_default_scope('mmpretrain')
    return DATASETS.build(
        dict(type='mmstepnet.STL10', data_root=str(root), download=False,
             **kwargs))


@pytest.mark.parametrize('split, count, found', [
    ('train', 3, [0, 9, 4]), ('test', 2, [2, 6])])
def test_images_and_labels(stl10, split, count, found):
    root, images = stl10
    dataset = build(root, split=split)
    assert len(dataset) == count
    for i in range(count):
        np.testing.assert_array_equal(dataset[i]['img'], images[i])
        assert dataset[i]['gt_label'] == found[i]


def test_refused(stl10):
    """Images without labels, which torchvision gives -1; a damaged file."""
    root, _ = stl10
    with pytest.raises(ValueError, match="'unlabeled'"):
        build(root, split='unlabeled')
    file = root / 'stl10_binary' / 'train_X.bin'
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(RuntimeError, match='not found or corrupted'):
        build(root)
