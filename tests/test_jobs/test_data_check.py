"""Data sets whose classes or pictures are not the model's."""

import json
import re
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch.nn as nn
from mmengine.config import Config
from mmengine.dataset import ConcatDataset, RepeatDataset
from mmengine.registry import DATASETS, init_default_scope
from mmengine.runner import EpochBasedTrainLoop
from mmpretrain.datasets import CustomDataset

from mmstepnet.jobs.data_check_hook import DataCheckHook
from tests.checkpoints import restored_mmengine  # noqa: F401, a fixture
from tests.documents import ROOT
from tests.programs import IN_PROCESS, call_tool, load_tool

pytest.importorskip('mmdet')
from mmdet.datasets import CocoDataset  # noqa: E402

COCO = CocoDataset.METAINFO['classes']
NUMBERS = [
    k
    for k in range(1, 91)
    if k not in (12, 26, 29, 30, 45, 66, 68, 69, 71, 83)
]
"""Of the categories in COCO's own files."""
CONFIG = ROOT / 'configs/digits/faster_rcnn_r18_stepnet_digits.py'


@pytest.fixture(scope='module')
def digits(tmp_path_factory):
    root = tmp_path_factory.mktemp('coco') / 'digits'
    call_tool(
        load_tool('dataset_converters/compose_digits.py'),
        '--out',
        root,
        '--train',
        4,
        '--val',
        2,
    )
    return root


def spoilt(digits, path, spoil):
    """A file of annotations with other categories."""
    content = json.loads(
        (digits / 'annotations/instances_val.json').read_text()
    )
    spoil(content['categories'])
    path.write_text(json.dumps(content))
    return str(path)


@pytest.mark.usefixtures('restored_mmengine')
def test_refused_before_the_first_iteration(digits, tmp_path, monkeypatch):
    """Not after the first epoch, when the validation begins."""
    monkeypatch.setattr(EpochBasedTrainLoop, 'run_iter', None)
    lacking = spoilt(digits, tmp_path / 'val.json', lambda c: c.pop())
    roots = [
        f'{loop}_dataloader.dataset.data_root={digits}'
        for loop in ('train', 'val', 'test')
    ]
    with pytest.raises(SystemExit, match="val data .* lacks the classes '9'"):
        call_tool(
            load_tool('train.py'),
            CONFIG,
            '--work-dir',
            tmp_path,
            '--cfg-options',
            *IN_PROCESS,
            *roots,
            f'val_dataloader.dataset.ann_file={lacking}',
            f'val_evaluator.ann_file={lacking}',
        )


def network(name, classes):
    """With as many classes as are given in one of its heads."""
    model = nn.Module()
    model.num_classes = classes
    for key in reversed(name.split('.')):
        model = nn.ModuleDict({key: model})
    return model


def look(dataset, model, before='train'):
    """What the hook warns of."""
    loader = SimpleNamespace(dataset=dataset)
    warnings = []
    getattr(DataCheckHook(), f'before_{before}')(
        SimpleNamespace(
            train_dataloader=loader,
            val_loop=None,
            test_dataloader=loader,
            model=model,
            logger=SimpleNamespace(warning=warnings.append),
        )
    )
    return warnings


def coco(digits, folder, spoil=lambda categories: None, prefix='val/'):
    init_default_scope('mmdet')
    cfg = Config.fromfile(CONFIG).val_dataloader.dataset
    cfg.update(
        data_root=str(digits),
        data_prefix=dict(img=prefix),
        ann_file=spoilt(digits, folder / 'val.json', spoil),
    )
    return DATASETS.build(cfg)


def own(digits, folder, spoil=lambda categories: None):
    """A class of the user's, which has its classes in itself."""

    @DATASETS.register_module(force=True)
    class Own(CocoDataset):
        METAINFO = dict(classes=tuple('0123456789'))

    return bare(Own.__name__, digits, folder, spoil)


def bare(kind, digits, folder, spoil, **metainfo):
    """A data set whose config says nothing of its classes, or else this."""
    init_default_scope('mmdet')
    cfg = Config.fromfile(CONFIG).val_dataloader.dataset
    cfg.update(
        type=kind,
        data_root=str(digits),
        metainfo=metainfo or None,
        ann_file=spoilt(digits, folder / 'val.json', spoil),
    )
    return DATASETS.build(cfg)


def eighty(digits, folder, numbers, names=COCO):
    """MMDetection's class with its own names."""
    return bare(
        'CocoDataset',
        digits,
        folder,
        lambda categories: categories.__setitem__(
            slice(None),
            [dict(id=k, name=name) for k, name in zip(numbers, names)],
        ),
    )


def called(digits, folder, classes, twice=None):
    """Digits of which two have one name, or whose classes are as given."""
    return bare(
        'CocoDataset',
        digits,
        folder,
        lambda categories: twice and categories[1].update(name=twice),
        classes=classes,
    )


def folders(digits, folder, *names):
    """Two, which MMPretrain numbers in this order."""
    for name in ('apple', 'pear'):
        (folder / name).mkdir()
        (folder / name / '1.jpg').touch()
    return CustomDataset(
        str(folder), metainfo=dict(classes=names) if names else None
    )


@pytest.mark.parametrize(
    'wrap',
    [
        pytest.param(lambda data: data, id='alone'),
        pytest.param(lambda data: RepeatDataset(data, 2), id='repeated'),
        pytest.param(lambda data: ConcatDataset([data, data]), id='joined'),
    ],
)
@pytest.mark.parametrize('before', ['train', 'test'])
@pytest.mark.parametrize(
    'build, arguments, head, classes, message',
    [
        pytest.param(coco, (), 'roi_head.bbox_head', 10, None, id='COCO'),
        pytest.param(
            coco,
            (lambda categories: categories[3].update(name=' 3'),),
            'roi_head.bbox_head',
            10,
            "lacks the classes '3'; its .*' 3'",
            id='COCO, another name',
        ),
        pytest.param(
            coco,
            (list.reverse,),
            'roi_head.bbox_head',
            10,
            "the categories '9', .*another order, '0'",
            id='COCO, another order',
        ),
        pytest.param(
            coco,
            (),
            'roi_head.bbox_head',
            80,
            "has the 10 classes '0', .*model."
            'roi_head.bbox_head has num_classes=80',
            id='COCO, a head of 80',
        ),
        pytest.param(
            coco,
            (lambda categories: None, 'annotations'),
            'roi_head.bbox_head',
            10,
            'names the picture .*annotations/.*not there',
            id='COCO, no picture',
        ),
        pytest.param(
            own, (), 'roi_head.bbox_head', 10, None, id='own classes'
        ),
        pytest.param(
            own,
            (list.reverse,),
            'roi_head.bbox_head',
            10,
            "the categories '9', .*another order, '0'",
            id='own classes, another order',
        ),
        pytest.param(
            eighty,
            (NUMBERS,),
            'roi_head.bbox_head',
            80,
            None,
            id='numbers of 80',
        ),
        pytest.param(
            eighty,
            (range(80),),
            'roi_head.bbox_head',
            80,
            None,
            id='all of 80',
        ),
        pytest.param(
            eighty,
            (range(80), sorted(COCO)),
            'roi_head.bbox_head',
            80,
            "the categories 'airplane', .*another order, 'person'",
            id='80 by the alphabet',
        ),
        pytest.param(
            called,
            (tuple('0123456789'),),
            'roi_head.bbox_head',
            10,
            None,
            id='digits',
        ),
        pytest.param(
            called,
            (tuple('023456789'), '0'),
            'roi_head.bbox_head',
            9,
            r"has two categories called '0' \(ids \d, \d\): merge them",
            id='digits, one twice',
        ),
        pytest.param(
            called,
            ('0',),
            'roi_head.bbox_head',
            1,
            r"classes='0', whose letters would be .*: write \('0', \)",
            id='a string for classes',
        ),
        pytest.param(
            folders, ('apple', 'pear'), 'head', 2, None, id='folders'
        ),
        pytest.param(
            folders,
            ('Malus', 'Pyrus'),
            'head',
            2,
            None,
            id='other names of folders',
        ),
        pytest.param(folders, (), 'head', 2, None, id='folders unnamed'),
        # A classifier may be tested on a part of its classes.
        pytest.param(
            folders, ('apple', 'pear'), 'head', 1000, None, id='a head of 1000'
        ),
        pytest.param(
            folders,
            ('pear', 'apple'),
            'head',
            2,
            "the folders 'apple', 'pear', and its classes",
            id='folders, another order',
        ),
        pytest.param(
            folders,
            ('apple', 'pear'),
            'head',
            1,
            "has the 2 classes 'apple', "
            "'pear', and model.head has num_classes=1",
            id='a head of 1',
        ),
    ],
)
def test_what_is_refused(
    digits, tmp_path, wrap, before, build, arguments, head, classes, message
):
    dataset = wrap(build(digits, tmp_path, *arguments))
    with (
        nullcontext()
        if message is None
        else pytest.raises(ValueError, match=f'the {before} data .*{message}')
    ):
        look(dataset, network(head, classes), before)


@pytest.mark.parametrize(
    'classes, head, message',
    [
        pytest.param(('apple', 'pear'), 2, None, id='as the folders'),
        pytest.param(
            ('apple', 'pear'),
            3,
            "2 classes 'apple', 'pear', and model.head has num_classes=3; .*, "
            'unless more outputs',
            id='a larger head',
        ),
        pytest.param(
            ('apple', 'paer'),
            2,
            "the folders 'pear', and where its classes .* them, 'paer':",
            id='a name misspelt',
        ),
        # ImageNet's folders have numbers for names.
        pytest.param(('Malus', 'Pyrus'), 2, None, id='names of their own'),
    ],
)
def test_what_is_warned_of(classes, head, message, tmp_path):
    """Once, before a training, and not where a network is tested."""
    data = folders(None, tmp_path, *classes)
    for dataset in (data, ConcatDataset([data, data])):
        warnings = look(dataset, network('head', head))
        assert len(warnings) == (message is not None)
        if message is not None:
            where = f'the train data set {tmp_path} has .*'
            assert re.match(where + message, warnings[0])
        assert look(dataset, network('head', head), 'test') == []


def test_data_sets_of_other_kinds_pass():
    look([1, 2, 3], nn.Module())
    look(SimpleNamespace(metainfo={}), nn.Module())
