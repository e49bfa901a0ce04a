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


def test_every_image_as_it_is_on_disk(folder):
    dataset = build(folder)
    assert len(dataset) == 14
    assert dataset.CLASSES == ('cat', 'dog')
    for sample in map(dataset.get_data_info, range(14)):
        np.testing.assert_array_equal(
            sample['img'], cv2.imread(sample['img_path']))
        name = dataset.CLASSES[sample['gt_label']]
        assert f'/{name}/' in sample['img_path']


def test_no_file_is_read_again(folder):
    dataset = build(folder, per_class=2)
    before = [dataset[i]['img'].copy() for i in range(4)]
    for path in folder.rglob('*.png'):
        path.unlink()
    for i, image in enumerate(before):
        np.testing.assert_array_equal(dataset[i]['img'], image)


def test_the_share_is_balanced_and_fixed(folder):
    share = chosen(folder, per_class=4, seed=3)
    assert [label for _, label in share] == [0] * 4 + [1] * 4
    assert len(set(share)) == 8
    assert share == chosen(folder, per_class=4, seed=3)
    assert share != chosen(folder, per_class=4, seed=4)
    # Legacy generator, frozen by NumPy: positions among sorted names.
    expected = np.random.RandomState(3).permutation(8)[:4]
    assert [number for number, _ in share[:4]] == sorted(expected)


def test_shares_are_nested(folder):
    assert set(chosen(folder, per_class=2)) < set(chosen(folder, per_class=5))


@pytest.mark.parametrize('kwargs, match', [
    (dict(per_class=7), "'dog'.*6 images"), (dict(per_class=0), 'got 0'),
    (dict(per_class=1.5), 'got 1.5')])
def test_bad_shares(folder, kwargs, match):
    with pytest.raises(ValueError, match=match):
        build(folder, **kwargs)


@pytest.mark.parametrize('kwargs', [{}, dict(per_class=3)])
def test_an_empty_class_is_refused(folder, kwargs):
    (folder / 'cow').mkdir()
    with pytest.raises(ValueError, match="'cow'.* has 0 images"):
        build(folder, **kwargs)


@pytest.mark.parametrize('content', [b'', b'no image at all'])
def test_files_that_are_no_image(folder, content):
    path = folder / 'cat' / '03.png'
    path.write_bytes(content)
    with pytest.raises((OSError, cv2.error)):
        build(folder)
