"""The papers' training settings, spelled out, against the resolved configs.

Most settings come from the hosts' files by inheritance, whose defaults may
change under us.
"""

from functools import cache

import pytest
from mmengine.config import Config

from tests.documents import CONFIGS, ROOT

HOUSE = ROOT / 'configs'
FIRST_PAPER, SECOND_PAPER = (
    ROOT / 'projects' / name / 'configs'
    for name in ('reproduction', 'metric_attention')
)
GPUS_OF_THE_HOSTS = {'imagenet': 8, 'coco': 8}
"""Their batch sizes are those of one of eight GPUs."""


def resnets(folder):
    return [
        path
        for path in sorted(folder.glob('resnet*.py'))
        if 'cosine' not in path.stem
    ]


@cache
def load(path):
    return Config.fromfile(path)


def check_schedule(cfg, lr, epochs, milestones):
    """SGD whose rate falls tenfold at milestones; what comes before them.

    Tests of classifiers are measured: Figs. 2 to 10 need no further command.
    """
    if cfg.default_scope != 'mmdet':
        (hook,) = cfg.custom_hooks
        assert hook.type == 'mmstepnet.StiffnessHook' and not hook.interval
    assert {
        name: value
        for name, value in cfg.optim_wrapper.optimizer.items()
        if name != '_scope_'
    } == dict(type='SGD', lr=lr, momentum=0.9, weight_decay=1e-4)
    assert not cfg.optim_wrapper.get('paramwise_cfg')
    schedulers = cfg.param_scheduler
    *before, steps = (
        [schedulers] if isinstance(schedulers, dict) else schedulers
    )
    assert (steps.type, steps.by_epoch, steps.milestones, steps.gamma) == (
        'MultiStepLR',
        True,
        milestones,
        0.1,
    )
    assert cfg.train_cfg.max_epochs == epochs
    return before


def transforms(cfg):
    return {t.type: t for t in cfg.train_dataloader.dataset.pipeline}


@pytest.mark.parametrize(
    'path',
    [
        p
        for f in (
            HOUSE / 'cifar10',
            HOUSE / 'cifar100',
            HOUSE / 'stl10',
            FIRST_PAPER / 'ablations',
        )
        for p in resnets(f)
    ],
    ids=lambda path: path.stem,
)
def test_table_6_cifar(path):
    """Batch 128 (STL-10: 16, a reading), 164 epochs, steps at 81 and 122."""
    cfg = load(path)
    stl10 = path.stem.endswith('stl10')
    assert not check_schedule(cfg, 0.1, 164, [81, 122])
    assert cfg.train_dataloader.batch_size == (16 if stl10 else 128)
    assert cfg.model.backbone.depth == 164
    assert cfg.data_preprocessor.mean == pytest.approx(
        [255 * value for value in (0.4914, 0.4822, 0.4465)]
    )
    assert cfg.data_preprocessor.std == pytest.approx(
        [255 * value for value in (0.2023, 0.1994, 0.2010)]
    )
    found = transforms(cfg)
    assert (found['RandomCrop'].crop_size, found['RandomCrop'].padding) == (
        (96, 12) if stl10 else (32, 4)
    )
    assert found['RandomFlip'].prob == 0.5
    assert set(found) <= {
        'LoadImageFromFile',
        'RandomCrop',
        'RandomFlip',
        'PackInputs',
    }


@pytest.mark.parametrize(
    'path', resnets(HOUSE / 'imagenet'), ids=lambda path: path.stem
)
def test_table_6_imagenet(path):
    """Batch 256, 120 epochs, steps at 30, 60 and 90, crops of 224."""
    cfg = load(path)
    assert not check_schedule(cfg, 0.1, 120, [30, 60, 90])
    assert cfg.auto_scale_lr.base_batch_size == 256
    found = transforms(cfg)
    assert found['RandomResizedCrop'].scale == 224
    assert found['RandomFlip'].prob == 0.5


@pytest.mark.parametrize(
    'path',
    [
        HOUSE / 'faster_rcnn_r50_stepnet_coco.py',
        *sorted((HOUSE / 'coco').glob('faster_rcnn*.py')),
        *sorted((FIRST_PAPER / 'coco').glob('*.py')),
    ],
    ids=lambda path: path.stem,
)
def test_the_schedule_of_coco(path):
    """MMDetection's 1x schedule, to which the paper's text leads."""
    cfg = load(path)
    (warm_up,) = check_schedule(cfg, 0.02, 12, [8, 11])
    assert (warm_up.type, warm_up.by_epoch, warm_up.end) == (
        'LinearLR',
        False,
        500,
    )
    assert cfg.auto_scale_lr.base_batch_size == 16
    assert tuple(transforms(cfg)['Resize'].scale) == (1333, 800)
    assert cfg.model.backbone.frozen_stages == 1
    assert cfg.model.backbone.norm_eval


@pytest.mark.parametrize(
    'path',
    sorted((SECOND_PAPER / 'multi30k').glob('*_printed_*.py')),
    ids=lambda path: path.stem,
)
def test_multi30k(path):
    """Adam, ReduceLROnPlateau, eight heads and six layers."""
    cfg = load(path)
    assert cfg.optim_wrapper.optimizer.type == 'Adam'
    assert cfg.param_scheduler.type == 'ReduceOnPlateauLR'
    assert cfg.model.num_heads == 8
    assert cfg.model.num_layers == 6


def test_the_images_of_a_step_are_the_config_s():
    """paper.py and train.py take as many."""
    differ, found = {}, 0
    for path in CONFIGS:
        cfg = load(path)
        base = cfg.get('auto_scale_lr', {}).get('base_batch_size')
        if base is None:
            continue
        found += 1
        gpus = (
            8
            if path.parent == HOUSE
            else GPUS_OF_THE_HOSTS.get(path.parent.name, 1)
        )
        images = cfg.train_dataloader.batch_size * gpus
        if images != base:
            differ[path.name] = images, base
    assert found > 100 and differ == {}
