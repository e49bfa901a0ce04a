"""Digits to classify, and pictures of them to detect."""

import os

import numpy as np
import pytest
from mmengine.config import Config
from mmengine.registry import DefaultScope
from mmengine.runner import Runner
from pycocotools.coco import COCO
from sklearn.datasets import load_digits

from mmstepnet.datasets import DigitsClassification, load_digit_split
from mmstepnet.datasets.digits_composer import compose, texture
from tests.documents import ROOT
from tests.programs import call_tool, load_tool, run_tool

SIZE = (96, 128)
COMPOSER = 'dataset_converters/compose_digits.py'
FEW = ('--train', 4, '--val', 3)


def test_splits_share_no_digit_and_lose_none():
    """Each has its share of every class, and MMPretrain's form of images."""
    digits = load_digits()
    positions = []
    for split, share in (('train', 0.8), ('val', 0.2)):
        images, labels, chosen = load_digit_split(split)
        positions.extend(chosen)
        assert images.dtype == np.uint8 and images.max() == 255
        np.testing.assert_array_equal(
            np.rint(images / 255 * 16), digits.images[chosen]
        )
        np.testing.assert_array_equal(labels, digits.target[chosen])
        counts = np.bincount(labels) - share * np.bincount(digits.target)
        assert np.abs(counts).max() <= 1
        dataset = DigitsClassification(split)
        assert dataset.metainfo['classes'] == tuple('0123456789')
        assert dataset.get_gt_labels().tolist() == labels.tolist()
        np.testing.assert_array_equal(
            dataset[5]['img'], images[5][..., None].repeat(3, -1)
        )
    np.testing.assert_array_equal(np.sort(positions), np.arange(1797))
    # Positions are digits: scikit-learn holds none twice.
    assert len(np.unique(digits.data, axis=0)) == 1797


@pytest.mark.parametrize('solid', [False, True])
def test_every_box_is_tight_and_no_ink_is_outside(solid):
    """Labels are those of the digits, which keep 95 % of their ink."""
    images, labels = load_digit_split('train')[:2]
    # A solid square shows one colour, which tells how much is left of it.
    images = np.full_like(images, 255) if solid else images
    for seed in range(300):
        kind = labels == seed % 10
        picture, boxes, found = compose(seed, images[kind], labels[kind], SIZE)
        assert (found == seed % 10).all()
        # The canvas is drawn first.
        canvas = texture(np.random.default_rng(seed), SIZE)
        changed = (picture != canvas).any(-1)
        covered = np.zeros(SIZE, int)
        for x1, y1, x2, y2 in boxes:
            assert 0 <= x1 < x2 <= SIZE[1] and 0 <= y1 < y2 <= SIZE[0]
            ink = changed[y1:y2, x1:x2]
            for edge in (ink[0], ink[-1], ink[:, 0], ink[:, -1]):
                assert edge.any()
            shown = picture[y1:y2, x1:x2].reshape(-1, 3)
            _, counts = np.unique(shown, axis=0, return_counts=True)
            assert not solid or counts.max() >= 0.95 * counts.sum()
            covered[y1:y2, x1:x2] += 1
        assert not changed[covered == 0].any()
    with pytest.raises(ValueError, match='at least 56x56 px.*got 48x128'):
        compose(0, images, labels, (48, 128))


def contents(folder):
    return {
        path.relative_to(folder): path.read_bytes()
        for path in sorted(folder.rglob('*'))
        if path.is_file()
    }


def test_files_follow_from_the_settings(tmp_path, monkeypatch):
    """In every process; what is whole, or another's, is left as it is.

    A split is composed of its own digits.
    """
    composer = load_tool(COMPOSER)
    out, other = tmp_path / 'a', tmp_path / 'b'
    call_tool(composer, '--out', out, *FEW)
    run_tool(f'tools/{COMPOSER}', '--out', other, *FEW, PYTHONHASHSEED='7')
    assert contents(out) == contents(other)
    picture = out / 'train' / '000000.png'
    before = picture.read_bytes()
    picture.write_bytes(b'mark')
    call_tool(composer, '--out', out, *FEW)
    assert picture.read_bytes() == b'mark'
    call_tool(composer, '--out', out, *FEW, '--seed', 1)
    assert picture.read_bytes() not in (before, b'mark')
    assert sorted(os.listdir(tmp_path)) == ['a', 'b']

    def interrupt(seed, digits, *args):
        assert len(digits) == (1437, 360)[seed[1]]
        if seed[1:] == (1, 2):
            raise KeyboardInterrupt
        return np.zeros((64, 64, 3), np.uint8), np.empty((0, 4)), np.empty(0)

    monkeypatch.setattr('mmstepnet.datasets.digits_files.compose', interrupt)
    before = contents(tmp_path)
    for folder in (out, tmp_path / 'new'):
        with pytest.raises(KeyboardInterrupt):
            call_tool(composer, '--out', folder, *FEW, '--seed', 3)
        assert contents(tmp_path) == before
    with pytest.raises(SystemExit, match='no data set of this tool'):
        call_tool(composer, '--out', tmp_path)


@pytest.fixture(scope='module')
def detection(tmp_path_factory):
    root = tmp_path_factory.mktemp('data') / 'digits'
    call_tool(
        load_tool(COMPOSER),
        '--out',
        root,
        '--train',
        24,
        '--val',
        30,
        '--seed',
        5,
    )
    return root


@pytest.mark.parametrize('split, count', [('train', 24), ('val', 30)])
def test_what_is_written_is_coco_and_is_what_a_runner_reads(
    detection, split, count
):
    pytest.importorskip('mmdet')
    coco = COCO(detection / 'annotations' / f'instances_{split}.json')
    assert len(coco.imgs) == count < len(coco.anns)
    assert [c['name'] for c in coco.loadCats(coco.getCatIds())] == list(
        '0123456789'
    )
    assert 0 not in coco.anns  # which its evaluation takes for "no match"

    cfg = Config.fromfile(
        ROOT / 'configs' / '_base_' / 'datasets' / ('digits_detection.py')
    )[f'{split}_dataloader']
    cfg.update(num_workers=0, persistent_workers=False)
    cfg.dataset.data_root = f'{detection}/'
    got = {}
    with DefaultScope.overwrite_default_scope('mmdet'):
        for batch in Runner.build_dataloader(cfg, seed=0):
            for image, sample in zip(batch['inputs'], batch['data_samples']):
                assert image.shape == (3, 128, 128)
                truth = sample.gt_instances
                got[sample.img_id] = list(
                    zip(truth.bboxes.tensor.tolist(), truth.labels.tolist())
                )
    assert got == {
        image: [
            ([x, y, x + width, y + height], a['category_id'] - 1)
            for a in coco.loadAnns(coco.getAnnIds(imgIds=image))
            for x, y, width, height in [a['bbox']]
        ]
        for image in coco.imgs
    }
    assert [] in got.values()  # empty pictures are trained with, too
