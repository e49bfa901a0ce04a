"""Data sets of images, against files written here."""

import hashlib

import cv2
import numpy as np
import pytest
import torchvision.datasets
from mmengine.registry import init_default_scope
from mmpretrain.registry import DATASETS


def build(kind, root, **kwargs):
    init_default_scope('mmpretrain')
    return DATASETS.build(
        dict(type=f'mmstepnet.{kind}', data_root=str(root), **kwargs)
    )


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


def test_every_image_as_it_is_on_disk_and_read_once(folder):
    dataset = build('FolderInMemory', folder)
    assert len(dataset) == 14
    assert dataset.CLASSES == ('cat', 'dog')
    images = [
        cv2.imread(dataset.get_data_info(i)['img_path']) for i in range(14)
    ]
    for path in folder.rglob('*.png'):
        path.unlink()
    for i, image in enumerate(images):
        sample = dataset[i]
        np.testing.assert_array_equal(sample['img'], image)
        name = dataset.CLASSES[sample['gt_label']]
        assert f'/{name}/' in sample['img_path']


def test_the_share_is_balanced_fixed_and_nested(folder):
    def chosen(**kwargs):
        """(number, class) of each image, read off its first pixel."""
        return [
            tuple(sample['img'][0, 0, ::2])
            for sample in build('FolderInMemory', folder, **kwargs)
        ]

    share = chosen(per_class=4, seed=3)
    assert [label for _, label in share] == [0] * 4 + [1] * 4
    assert len(set(share)) == 8
    assert share != chosen(per_class=4) == chosen(per_class=4, seed=0)
    # Legacy generator, frozen by NumPy: positions among sorted names.
    expected = np.random.RandomState(3).permutation(8)[:4]
    assert [number for number, _ in share[:4]] == sorted(expected)
    assert set(chosen(per_class=2, seed=3)) < set(share)


@pytest.mark.parametrize(
    'spoil, kwargs, error, match',
    [
        pytest.param(
            None,
            dict(per_class=7),
            ValueError,
            "'dog'.*6 images",
            id='too few pictures',
        ),
        pytest.param(
            None, dict(per_class=0), ValueError, 'got 0', id='none asked for'
        ),
        pytest.param(
            lambda root: (root / 'cow').mkdir(),
            {},
            ValueError,
            "'cow'.* has 0 images",
            id='an empty class',
        ),
        pytest.param(
            lambda root: (root / 'cat' / '03.png').write_bytes(
                b'no image at all'
            ),
            {},
            OSError,
            'cat/03.png is no image',
            id='no picture',
        ),
    ],
)
def test_refused(folder, spoil, kwargs, error, match):
    if spoil is not None:
        spoil(folder)
    with pytest.raises(error, match=match):
        build('FolderInMemory', folder, **kwargs)


def test_stl10(tmp_path, monkeypatch):
    """From binary files, written here as its authors describe them.

    "The values are stored column by column, one channel at a time", labels
    run from 1 to 10. The files' checksums are set to those of ours.
    """
    binary = tmp_path / 'stl10_binary'
    binary.mkdir()
    images = np.random.default_rng(0).integers(
        0, 256, (3, 96, 96, 3), dtype=np.uint8
    )
    columns = images.transpose(0, 3, 2, 1)  # image, channel, column, row
    sums = []
    for name, values in dict(
        train_X=columns,
        train_y=np.uint8([1, 10, 5]),
        unlabeled_X=columns[:1],
        test_X=columns[:2],
        test_y=np.uint8([3, 7]),
    ).items():
        values.tofile(binary / f'{name}.bin')
        sums.append([f'{name}.bin', hashlib.md5(values.tobytes()).hexdigest()])
    monkeypatch.setattr(torchvision.datasets.STL10, 'train_list', sums[:3])
    monkeypatch.setattr(torchvision.datasets.STL10, 'test_list', sums[3:])
    for split, labels in (('train', [0, 9, 4]), ('test', [2, 6])):
        dataset = build('STL10', tmp_path, split=split, download=False)
        assert [sample['gt_label'] for sample in dataset] == labels
        for sample, image in zip(dataset, images):
            np.testing.assert_array_equal(sample['img'], image)
    with pytest.raises(ValueError, match="'unlabeled'"):  # no labels
        build('STL10', tmp_path, split='unlabeled')
