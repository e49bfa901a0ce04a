"""Damaged data: images, annotations, and the files of every data set."""

import copy
import json
import math

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mmcv.transforms import LoadImageFromFile
from mmengine.config import Config
from mmengine.registry import DATASETS, init_default_scope

from mmstepnet.jobs import patches
from mmstepnet.jobs.data_check import named_data
from mmstepnet.jobs.data_check_hook import (
    check_categories,
    check_not_empty,
)
from mmstepnet.stiffness import FIELDS, Trajectories
from tests.documents import ROOT
from tests.programs import call_tool, load_tool
from tests.test_robustness.inputs import BOUNDED, refused
from tests.test_stiffness.test_trajectories import arrays


def cut(path, data):
    """Cut a file off, or overwrite some of it."""
    content = path.read_bytes()
    if data.draw(st.booleans()):
        content = content[:data.draw(st.integers(0, len(content) - 1))]
    else:
        place = data.draw(st.integers(0, len(content) - 1))
        other = data.draw(st.binary(min_size=1, max_size=8))
        content = content[:place] + other + content[place + len(other):]
    path.write_bytes(content)


@pytest.fixture(scope='module')
def coco(tmp_path_factory):
    """Composed pictures, their config and annotations."""
    root = tmp_path_factory.mktemp('coco') / 'digits'
    call_tool(load_tool('dataset_converters/compose_digits.py'), '--out',
              root, '--train', 12, '--val', 1)
    cfg = Config.fromfile(
        ROOT / 'configs' / '_base_' / 'datasets' / 'digits_detection.py')
    cfg = cfg.train_dataloader.dataset
    cfg.data_root = str(root)
    path = root / cfg.ann_file
    return cfg, json.loads(path.read_text())


@pytest.fixture(scope='module', autouse=True)
def named_images():
    """As the tools do, for these tests alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            LoadImageFromFile, 'transform', LoadImageFromFile.transform)
        patches._name_images()
        yield


@pytest.fixture(autouse=True)
def mmdet_scope():
    init_default_scope('mmdet')


def load(cfg, annotations):
    """The data set and all its samples, as the tools would load them."""
    path = f'{cfg.data_root}/annotations/damaged.json'
    with open(path, 'w') as file:
        file.write(annotations if isinstance(annotations, str) else
                   json.dumps(annotations))
    with named_data():
        # A garbage collection for each data set would take longer.
        dataset = DATASETS.build(
            dict(cfg, ann_file=path, serialize_data=False))
    check_not_empty(dataset, 'train')
    check_categories(dataset, 'train')
    return [dataset[i] for i in range(len(dataset))]


def boxes(samples):
    for sample in samples:
        gt = sample['data_samples'].gt_instances
        yield from zip(gt.bboxes.tensor.tolist(), gt.labels.tolist())


def check_boxes(samples):
    """Each box is finite and in the image, each label a class."""
    for (x1, y1, x2, y2), label in boxes(samples):
        assert 0 <= x1 <= x2 <= 128 and 0 <= y1 <= y2 <= 128
        assert 0 <= label < 10


@settings(BOUNDED, max_examples=40)
@given(data=st.data())
def test_annotations_cut_off(coco, data):
    cfg, annotations = coco
    text = json.dumps(annotations)
    assert 'DigitsDetection of' in refused('damaged.json', lambda: load(
        cfg, text[:data.draw(st.integers(0, len(text) - 1))]))


# mmdet leaves out such annotations: its documented handling.
LEFT_OUT = [
    dict(bbox=[500, 10, 20, 20]), dict(bbox=[-50, -50, 20, 20]),
    dict(bbox=[10, 10, 0, 20]), dict(bbox=[10, 10, 20, 0]),
    dict(bbox=[10, 10, -5, 20]), dict(area=0), dict(area=-1),
    dict(category_id=77), dict(category_id=-1), dict(iscrowd=1),
    dict(ignore=True)
]
CLIPPED = [dict(bbox=[100, 100, 500, 500]), dict(bbox=[-10, -10, 40, 40])]


@pytest.mark.parametrize('change', LEFT_OUT + CLIPPED)
def test_boxes_outside_and_classes_unknown(coco, change):
    cfg, annotations = coco
    before = list(boxes(load(cfg, annotations)))
    annotations = copy.deepcopy(annotations)
    annotations['annotations'][0].update(change)
    samples = load(cfg, annotations)
    check_boxes(samples)
    assert len(list(boxes(samples))) == len(before) - (change in LEFT_OUT)


@settings(BOUNDED, max_examples=100)
@given(data=st.data())
def test_fields_of_annotations(coco, data):
    """A wrong field is refused with the file's name, or does no harm."""
    cfg, annotations = coco
    annotations = copy.deepcopy(annotations)
    part = data.draw(st.sampled_from(['images', 'annotations', 'categories']))
    entry = data.draw(st.sampled_from(annotations[part][:3]))
    key = data.draw(st.sampled_from(sorted(entry)))
    wrong = data.draw(st.sampled_from([
        None, 'x', '', [], {}, -1, 10**9, 1.5, math.nan, math.inf, [1, 2],
        [math.nan] * 4, [0, 0, math.inf, 1], ['a'] * 4, True, 'gone']))
    if wrong == 'gone':
        del entry[key]
    else:
        entry[key] = wrong
    try:
        samples = load(cfg, annotations)
    except (ValueError, AssertionError, OSError) as error:
        # A name or size of an image shows when it is read.
        assert 'damaged.json' in str(error) or (
            part == 'images' and key in ('file_name', 'width', 'height'))
    else:
        check_boxes(samples)


@pytest.mark.parametrize('spoil, message', [
    (lambda a: a.update(categories=[]), 'has no samples|has 0 of the 10'),
    (lambda a: a.update(categories=a['categories'][1:]), 'has 9 of the 10'),
    (lambda a: a['categories'][3].update(name='three'), 'has 9 of the 10'),
    (lambda a: a.update(images=[]), 'has no samples'),
    (lambda a: a.update(annotations=[], images=[]), 'has no samples'),
    (lambda a: a.pop('images'), 'images|no samples'),
    (lambda a: a.pop('categories'), 'categories'),
])
def test_empty_annotations_and_missing_classes(coco, spoil, message):
    """With a class missing mmdet takes each later one for the one before."""
    cfg, annotations = coco
    annotations = copy.deepcopy(annotations)
    spoil(annotations)
    with pytest.raises(ValueError, match=message) as raised:
        load(cfg, annotations)
    assert 'damaged.json' in str(raised.value)


def test_pictures_without_annotations(coco):
    """Are kept where the config says so, and else filtered out."""
    cfg, annotations = coco
    annotations = dict(annotations, annotations=[])
    assert not list(boxes(load(cfg, annotations)))
    cfg = copy.deepcopy(cfg)
    cfg.filter_cfg.filter_empty_gt = True
    refused('has no samples', lambda: load(cfg, annotations))


@pytest.mark.parametrize('suffix', ['.png', '.jpg'])
@settings(BOUNDED, max_examples=30)
@given(data=st.data())
def test_images_cut_off_or_of_another_kind(coco, tmp_path_factory, suffix,
                                           data):
    """mmcv's loader refuses them by name, and ours what it cannot name."""
    cfg, annotations = coco
    folder = tmp_path_factory.mktemp('images')
    name = annotations['images'][0]['file_name']
    picture = cv2.imread(f'{cfg.data_root}/{cfg.data_prefix.img}/{name}')
    _, content = cv2.imencode(suffix, picture)
    content = data.draw(st.one_of(
        st.integers(0, len(content) - 1).map(
            lambda n: content.tobytes()[:n]), st.binary(max_size=99)))
    (folder / name).write_bytes(content)
    cfg = copy.deepcopy(cfg)
    cfg.data_prefix.img = str(folder)
    annotations = dict(annotations, images=annotations['images'][:1])
    with pytest.raises((AssertionError, ValueError), match=name):
        load(cfg, annotations)


def test_a_missing_image(coco):
    cfg, annotations = coco
    annotations = copy.deepcopy(annotations)
    annotations['images'][0]['file_name'] = 'gone.png'
    refused('gone.png', lambda: load(cfg, annotations), FileNotFoundError)


@settings(BOUNDED, max_examples=40)
@given(text=st.one_of(
    st.text(alphabet='ab./1 \n', max_size=30),
    st.just('1.png 3\n2.png'), st.just('1.png three'), st.just('\x00')))
def test_lists_of_labels(tmp_path_factory, text):
    """MMPretrain's CustomDataset: read, or refused by the file's name."""
    init_default_scope('mmpretrain')
    path = tmp_path_factory.mktemp('labels') / 'train.txt'
    path.write_text(text)
    cfg = dict(type='CustomDataset', data_root=str(path.parent),
               ann_file=path.name, serialize_data=False)
    try:
        with named_data():
            dataset = DATASETS.build(cfg)
        check_not_empty(dataset, 'train')
    except (ValueError, FileNotFoundError) as error:
        assert str(path) in str(error)
    else:
        assert all(isinstance(label, int | np.integer)
                   for label in dataset.get_gt_labels().tolist())


@pytest.fixture(scope='module')
def recorded(tmp_path_factory):
    path = tmp_path_factory.mktemp('record') / 'a.npz'
    Trajectories(**arrays()).save(path)
    return path.read_bytes()


@settings(BOUNDED, max_examples=40)
@given(data=st.data())
def test_records_of_stiffness(tmp_path_factory, recorded, data):
    path = tmp_path_factory.mktemp('record') / 'stiffness_a.npz'
    path.write_bytes(recorded)
    cut(path, data)
    try:
        record = Trajectories.load(path)
    except ValueError as error:
        assert str(path) in str(error)
    else:
        assert all(np.isfinite(getattr(record, name)).all() for name in FIELDS)
