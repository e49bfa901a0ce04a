"""Configs in which one field is wrong."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mmengine.config import Config
from mmengine.registry import DATASETS, MODELS, init_default_scope
from mmpretrain.structures import DataSample

from tests.documents import ROOT
from tests.test_robustness.inputs import BOUNDED

WRONG = [None, 'x', '', [], {}, -1, 0, 2.5, float('nan'), True, [-1], b'x',
         'mmstepnet.Nothing', dict(type='mmstepnet.Nothing'), 1j]

# Every one is refused with its name, or is a value that it may have.
OURS = {
    'attention', 'blocks', 'depth', 'first_block', 'preact', 'out_indices',
    'frozen_stages', 'num_stages', 'init_step', 'reduction', 'in_channels',
    'embed_dims', 'out_channels', 'propagation', 'hidden_dims', 'eps',
}


def images():
    return dict(
        inputs=torch.rand(4, 3, 32, 32) * 255,
        data_samples=[DataSample().set_gt_label(k) for k in range(4)])


CASES = {
    'configs/digits/resnet20_stepnet_digits.py': (
        images, dict(backbone=dict(
            attention=dict(type='SE', reduction=16, init_step=1.0),
            blocks=['layer2'], first_block=True, preact=False,
            frozen_stages=0))),
    'configs/cifar10/vit_stepnet_cifar10.py': (
        images, dict(backbone=dict(arch=dict(
            embed_dims=16, num_layers=2, num_heads=2,
            feedforward_channels=16)), head=dict(in_channels=16))),
    'configs/cifar10/vit_metric_cifar10.py': (
        images, dict(backbone=dict(arch=dict(
            embed_dims=16, num_layers=2, num_heads=2,
            feedforward_channels=16)), head=dict(in_channels=16))),
}


def prepare(name):
    cfg = Config.fromfile(ROOT / name)
    make, changes = CASES[name]
    cfg.merge_from_dict(dict(model=changes))
    model = cfg.model.to_dict()
    if make is images:
        model['data_preprocessor'] = cfg.data_preprocessor.to_dict()
    return cfg.default_scope, model, make


def fields(cfg, path=()):
    """Paths of all fields, those of nested configs too."""
    for key, value in cfg.items():
        yield (*path, key)
        if isinstance(value, dict):
            yield from fields(value, (*path, key))


def replace(cfg, path, value):
    cfg = copy.deepcopy(cfg)
    part = cfg
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = copy.deepcopy(value)  # the hosts add to it
    return cfg


def loss(cfg, make):
    model = MODELS.build(cfg).train()
    losses = model(**model.data_preprocessor(make(), True), mode='loss')
    return model.parse_losses(losses)[0]


@pytest.fixture(scope='module', params=CASES)
def case(request):
    return prepare(request.param)


def test_what_the_fields_are_replaced_in_is_right(case):
    scope, cfg, make = case
    init_default_scope(scope)
    assert loss(cfg, make).isfinite()


@settings(BOUNDED, max_examples=120)
@given(data=st.data())
def test_fields_of_models(case, data):
    """An error, which names a field of ours; else a loss that is finite.

    The hosts' parts take NaN, or a deviation of 0, without a look; the loss
    that comes of it is refused by FiniteCheckHook.
    """
    scope, cfg, make = case
    init_default_scope(scope)
    path = data.draw(st.sampled_from(sorted(fields(cfg))))
    value = data.draw(st.sampled_from(WRONG))
    try:
        result = loss(replace(cfg, path, value), make)
    except Exception as error:
        assert not isinstance(error, (SystemError, RecursionError,
                                      MemoryError))
        # True is 1 to Python.
        if (path[-1] in OURS and not {'arch', 'head'} & {*path}
                and value is not True):
            assert path[-1] in str(error), (path, value, error)
    else:
        assert result.isfinite() or path[-1] not in OURS, (path, value)


DATA = [
    dict(type='mmstepnet.DigitsClassification', split='val', pipeline=[]),
    dict(type='mmstepnet.STL10', data_root='nowhere', split='train',
         download=False),
]


@pytest.mark.parametrize('cfg', DATA, ids=lambda cfg: cfg['type'])
@settings(BOUNDED, max_examples=40)
@given(data=st.data())
def test_fields_of_data_sets(cfg, data):
    """What can be loaded has samples; all else is an error."""
    init_default_scope('mmpretrain')
    # What is true enough to Python would fetch 2.5 GB.
    names = sorted(cfg.keys() - {'type', 'download'})
    name = data.draw(st.sampled_from(names))
    value = data.draw(st.sampled_from(WRONG))
    try:
        dataset = DATASETS.build(replace(cfg, (name, ), value))
    except (ValueError, TypeError, FileNotFoundError, KeyError,
            AssertionError, AttributeError) as error:
        if (name == 'split'
                and not isinstance(error, FileNotFoundError)):
            assert name in str(error) or repr(value) in str(error)
    else:
        assert len(dataset) > 0
