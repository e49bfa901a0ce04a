"""Damaged and foreign files: one clear line each, and nothing is changed."""

import copy
import io
import json
import os
import pickle
import zipfile

import pytest
import safetensors.torch
import torch
from safetensors import safe_open
from torchvision.models import resnet50

import mmstepnet
from mmstepnet.steps.files import METADATA
from tests.test_steps import own_forward_blocks as blocks
from tests.test_steps.test_files import make, written_block

GATE = 'layer1.0.step.attention.'
WEIGHT = GATE + 'pair_weight'


@pytest.fixture(scope='module')
def resnet():
    model, plain, _, _ = make('resnet')
    return model, plain


@pytest.fixture(scope='module')
def written():
    model, plain, _, _ = make('written')
    return model, plain


def refused(plain, path, message):
    """Loading says so in one line and changes nothing."""
    before = copy.deepcopy(plain.state_dict())
    parts = [(type(m), m.training) for m in plain.modules()]
    with pytest.raises(ValueError, match=message) as error:
        mmstepnet.load_steps(plain, path)
    text = str(error.value)
    assert str(path) in text and text.isprintable() and len(text) < 500
    after = plain.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(t, before[k]) for k, t in after.items())
    assert parts == [(type(m), m.training) for m in plain.modules()]


def saved(model, folder, change=None, tensors=None):
    """A file whose metadata or tensors were changed."""
    path = folder / 'steps.safetensors'
    mmstepnet.save_steps(model, path)
    with safe_open(path, 'pt') as file:
        about = json.loads(file.metadata()[METADATA])
        found = {name: file.get_tensor(name) for name in file.keys()}
    if change is not None:
        change(about)
    found = found if tensors is None else tensors(found)
    safetensors.torch.save_file(found, path, {METADATA: json.dumps(about)})
    return path


def steps_of(model):
    """What ``load_steps`` looks at in the weights of a whole model."""
    return {key: t for key, t in model.state_dict().items()
            if '.step.' in key}


def _first(about):
    return about['blocks']['layer1.0']


def _step(**values):
    return lambda about: _first(about)['steps']['step'].update(values)


METADATA_OF_OTHERS = {
    'newer': (lambda a: a.update(format_version=2),
              'has format 2; this mmstepnet reads formats up to 1'),
    'no version': (lambda a: a.pop('format_version'), 'is damaged'),
    'version 0': (lambda a: a.update(format_version=0), 'is damaged'),
    'version NaN': (lambda a: a.update(format_version=float('nan')),
                    'is damaged'),
    'no blocks': (lambda a: a.pop('blocks'), 'is damaged'),
    'blocks are empty': (lambda a: a.update(blocks={}), 'holds no steps'),
    'blocks are a list': (lambda a: a.update(blocks=[1]), 'is damaged'),
    'no class': (lambda a: _first(a).pop('class'), 'is damaged'),
    'another class': (lambda a: _first(a).update({'class': 'Bottleneck'}),
                      'layer1.0 is a BasicBlock here and was a Bottleneck'),
    'another name': (lambda a: a['blocks'].update(
        {'layer9.0': a['blocks'].pop('layer1.0')}),
        "has steps for 'layer9.0', and the model has no such module"),
    'steps are a text': (lambda a: _first(a).update(steps='x'),
                         'is damaged'),
    'another step': (lambda a: _first(a).update(
        steps={'mlp_step': _first(a)['steps']['step']}), 'took them in'),
    'no init_step': (lambda a: _first(a)['steps']['step'].pop('init_step'),
                     'is damaged.*init_step'),
    'init_step is a text': (_step(init_step='x'), 'is damaged.*init_step'),
    'another attention': (_step(type='OursNoNorm'), GATE + 'bn.'),
    'unknown attention': (_step(type='os.system'),
                          "'os.system' of layer1.0 is not registered"),
    'an argument too many': (_step(colour='red'), "StepNet.*'colour'"),
    'an unknown argument': (_step(inputs='y'), "layer1.0 cannot get.*'y'"),
    'unknown module to save': (lambda a: a.update(modules_to_save=['head']),
                               "holds 'head'"),
    'modules are a text': (lambda a: a.update(modules_to_save='fc'),
                           'is damaged'),
}


@pytest.mark.parametrize('what', METADATA_OF_OTHERS)
def test_metadata(what, resnet, tmp_path):
    model, plain = resnet
    change, message = METADATA_OF_OTHERS[what]
    refused(plain, saved(model, tmp_path, change), message)


@pytest.mark.parametrize('text', [
    '', '{', '[]', 'null', '{"format_version":' + '[' * 100_000,
    '{"format_version":' + '9' * 5000 + '}'])
def test_metadata_that_are_none(text, resnet, tmp_path):
    model, plain = resnet
    path = saved(model, tmp_path)
    tensors = safetensors.torch.load_file(path)
    safetensors.torch.save_file(tensors, path, {METADATA: text})
    refused(plain, path, 'is damaged')


def test_steps_that_are_there_keep_their_start(resnet, tmp_path):
    """Nothing was asked before a part of the weights was loaded."""
    model, _ = resnet
    path = saved(model, tmp_path, lambda about: about['blocks']['layer4.1'][
        'steps']['step'].update(init_step='x'))
    refused(copy.deepcopy(model), path, 'is damaged.*init_step')


def _with(name, change):
    return lambda tensors: {**tensors, name: change(tensors[name])}


def _at_first(value):
    def change(t):
        t = t.clone()
        t[0, 0] = value
        return t
    return change


TENSORS = {
    'missing': (lambda t: {k: v for k, v in t.items() if k != WEIGHT},
                'pair_weight has the shape of nothing, it is missing'),
    'too many': (lambda t: {**t, 'fc.weight': torch.ones(2)},
                 'fc.weight, which belong'),
    'too many in a step': (lambda t: {**t, GATE + 'more': torch.ones(2)},
                           'attention.more'),
    'another width': (lambda t: {
        k: v[:32].clone() if v.is_floating_point() and GATE in k else v
        for k, v in t.items()}, 'has the shape'),
    'integers': (_with(WEIGHT, torch.Tensor.long), 'is of torch.int64'),
    'complex': (_with(WEIGHT, torch.Tensor.cfloat), 'is of torch.complex64'),
    'NaN': (_with(WEIGHT, _at_first(float('nan'))), 'holds NaN or infinity'),
    'infinity': (_with(WEIGHT, _at_first(float('inf'))),
                 'holds NaN or infinity'),
}


@pytest.mark.parametrize('what', TENSORS)
def test_tensors(what, resnet, tmp_path):
    model, plain = resnet
    change, message = TENSORS[what]
    refused(plain, saved(model, tmp_path, tensors=change), message)
    if what != 'too many':  # a whole model has others
        torch.save(change(steps_of(model)), tmp_path / 'whole.pth')
        refused(plain, tmp_path / 'whole.pth', message)


RECORDS = {
    'noise': (torch.full((256, ), 200, dtype=torch.uint8), 'is no record'),
    'one number': (torch.tensor(2.0**40), 'is no record'),
    'NaN': (torch.full((256, ), float('nan')), 'is no record'),
    'nested': (torch.tensor(list(b'[' * 100_000)), 'is no record'),
    'without a type': (torch.tensor(list(b'{"init_step": 1}')), 'lacks'),
    'unknown': (torch.tensor(list(b'{"type": "No", "init_step": 1}')),
                "'No' of layer1.0 is not registered"),
}


@pytest.mark.parametrize('what', RECORDS)
def test_records_of_a_whole_model(what, resnet, tmp_path):
    model, plain = resnet
    record, message = RECORDS[what]
    torch.save({**steps_of(model), GATE + '_extra_state': record},
               tmp_path / 'whole.pth')
    refused(plain, tmp_path / 'whole.pth', message)


@pytest.mark.parametrize('damage', [
    lambda plans: plans.pop(), lambda plans: plans.clear(),
    lambda plans: plans[1]['places'].pop(),
    lambda plans: plans[1]['places'][0].update(name='another'),
    lambda plans: plans[1]['places'][0].update(ordinals=['x']),
    lambda plans: plans[1]['places'][0].pop('width'),
])
def test_plans(damage, written, tmp_path):
    model, plain = written
    refused(plain, saved(model, tmp_path, lambda about: damage(
        about['blocks']['1']['plans'])), 'is damaged')


def test_blocks_of_another_width(written, tmp_path, monkeypatch):
    """Their own forward would fail in the first pass."""
    path = saved(written[0], tmp_path)
    monkeypatch.setattr(blocks, 'C', 2 * blocks.C)
    refused(written_block(), path, 'a step of 8 channels, and none of its')


@pytest.mark.parametrize('build,message', [
    (resnet50, 'layer1.0 is a Bottleneck here and was a BasicBlock'),
    (written_block, "has steps for 'layer1.0', and the model has no such")])
def test_steps_of_another_model(build, message, resnet, tmp_path):
    refused(build(), saved(resnet[0], tmp_path), message)


def packed():
    """A zip that is a thousandth of what is in it."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, 'w', zipfile.ZIP_DEFLATED) as archive:
        archive.writestr('archive/version', '3')
        archive.writestr('archive/data.pkl', bytes(10**7))
    return file.getvalue()


CONTENTS = {
    'nothing': b'', 'a text': b'hello world\n', 'zeros': bytes(100),
    'PNG': b'\x89PNG\r\n\x1a\n\0\0\0\rIHDR' + bytes(99),
    'ONNX': b'\x08\x08\x12\x07pytorch' + bytes(99),
    'a page': b'<!DOCTYPE html><html>', 'a pickle': pickle.dumps({'a': 1}),
    'a pointer of LFS': b'version https://git-lfs.github.com/spec/v1\n',
    'a zip': packed(), 'a long header': b'\xff' * 8 + b'{}',
}


@pytest.mark.parametrize('ending,message', [
    ('safetensors', 'is no whole file of safetensors'),
    ('pth', 'cannot be read as weights: it is no whole file of torch.save')])
@pytest.mark.parametrize('what', CONTENTS)
def test_files_that_are_none(what, ending, message, written, tmp_path):
    path = tmp_path / f'a.{ending}'
    path.write_bytes(CONTENTS[what])
    refused(written[1], path, message)


@pytest.mark.parametrize('length', [5, 50, -100])
def test_cut_files(length, resnet, tmp_path):
    model, plain = resnet
    path = saved(model, tmp_path)
    path.write_bytes(path.read_bytes()[:length])
    refused(plain, path, 'no whole file of safetensors')


@pytest.mark.parametrize('content', [
    torch.ones(2), [1], 3, {1: torch.ones(1)}, dict(state_dict=3),
    dict(epoch=3)])
def test_files_without_weights(content, written, tmp_path):
    torch.save(content, tmp_path / 'a.pth')
    refused(written[1], tmp_path / 'a.pth', 'a.pth holds no weights')


class Runs:
    """What a file of pickle may do."""

    def __reduce__(self):
        return os.mkdir, ('ran', )


def test_code_in_a_file_is_not_run(written, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save(dict(a=Runs()), 'a.pth')
    refused(written[1], 'a.pth', 'cannot be read.*mkdir')
    assert not (tmp_path / 'ran').exists()
