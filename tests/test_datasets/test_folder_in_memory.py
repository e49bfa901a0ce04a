"""Class folders in memory, against files written here."""

import cv2
import numpy as np
import pytest
from mmengine.registry import init_default_scope
from mmpretrain.registry import DATASETS


@pytest.fixture
def folder(tmp_path):
    """Folder of 8 cats and 6 dogs; each image is told by its first pixel."""
    rng = np.random.default_rng(0)
    for name, count in (('dog', 6), ('cat', 8)):
        (tmp_path / name).mkdir()
        for i in rng.permutation(count):
            image = rng.integers(0, 256, (5, 7, 3), dtype=np.uint8)
            image[0, 0] = (i, 0, name == 'dog')
            cv2.imwrite(str(tmp_path / name / f'{i:02d}.png'), image)
    return tmp_path


def build(root, **kwargs):
    init_default_scope('mmpretrain')
    return DATASETS.build(dict(
        type='mmstepnet.FolderInMemory', data_root=str(root), **kwargs))


def chosen(root, **kwargs):
    """(number, class) of each image, read off its first pixel."""
    dataset = build(root, **kwargs)
    return [tuple(dataset[i]['img'][0, 0, ::2]) for i in range(len(dataset))]


def test_every_image_as_it_is_on_disk_and_read_once(folder):
    dataset = build(folder)
    assert len(dataset) == 14
    assert dataset.CLASSES == ('cat', 'dog')
    images = [cv2.imread(dataset.get_data_info(i)['img_path'])
              for i in range(14)]
    for path in folder.rglob('*.png'):
        path.unlink()
    for i, image in enumerate(images):
        sample = dataset[i]
        np.testing.assert_array_equal(sample['img'], image)
        name = dataset.CLASSES[sample['gt_label']]
        assert f'/{name}/' in sample['img_path']


def test_the_share_is_balanced_fixed_and_nested(folder):
    share = chosen(folder, per_class=4, seed=3)
    assert [label for _, label in share] == [0] * 4 + [1] * 4
    assert len(set(share)) == 8
    assert share == chosen(folder, per_class=4, seed=3)
    assert share != chosen(folder, per_class=4, seed=4)
    # Legacy generator, frozen by NumPy: positions among sorted names.
    expected = np.random.RandomState(3).permutation(8)[:4]
    assert [number for number, _ in share[:4]] == sorted(expected)
    assert set(chosen(folder, per_class=2, seed=3)) < set(share)


@pytest.mark.parametrize('spoil, kwargs, error, match', [
    (None, dict(per_class=7), ValueError, "'dog'.*6 images"),
    (None, dict(per_class=0), ValueError, 'got 0'),
    (lambda root: (root / 'cow').mkdir(), {}, ValueError,
     "'cow'.* has 0 images"),
    (lambda root: (root / 'cow').mkdir(), dict(per_class=3), ValueError,
     "'cow'.* has 0 images"),
    (lambda root: (root / 'cat' / '03.png').write_bytes(b'no image at all'),
     {}, OSError, 'cat/03.png is no image'),
])
def test_refused(folder, spoil, kwargs, error, match):
    if spoil is not None:
        spoil(folder)
    with pytest.raises(error, match=match):
        build(folder, **kwargs)
