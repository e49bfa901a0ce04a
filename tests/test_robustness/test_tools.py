"""Bad command lines, checkpoints and jobs, in this process."""

import io
import math
import zipfile
from copy import deepcopy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope

from mmstepnet.jobs.checkpoint import load_weights, read_checkpoint
from tests.documents import ROOT
from tests.programs import IN_PROCESS, call_tool, load_tool
from tests.test_robustness.inputs import (
    BOUNDED,
    NOT_FINITE,
    refused,
)

CONFIG = str(ROOT / 'configs' / 'digits' / 'resnet20_stepnet_digits.py')
COUNTS = ['0', '-3', '1.5', 'two', '', 'nan', '1e3', '٣x']
OPTIONS = ['novalue', '', '=3', 'a:3']
# Tool: what comes before, then options and values that none may have.
COMMANDS = {
    'train.py': ([CONFIG], {'--launcher': ['mpirun', ''],
                            '--local_rank': ['x', '1.5'],
                            '--cfg-options': OPTIONS}),
    'test.py': ([CONFIG, 'x.pth'], {'--launcher': ['gloo'],
                                    '--out': ['x.txt', 'json', '.npz'],
                                    '--cfg-options': OPTIONS}),
    'projects.reproduction.paper': (
        ['run', '1'], {'--seeds': ['0', '-3', 'two', '5-3', '3-'],
                       '--gpus': COUNTS}),
    'publish_model.py': (['x.pth', 'out'], {'--hash': ['8']}),
    'analysis_tools/stiffness.py': (
        [CONFIG, 'x.pth'], {'--max-samples': COUNTS,
                            '--split': ['validation', ''],
                            '--cfg-options': OPTIONS}),
    'projects.reproduction.stiffness_report': (
        ['run'], {'--reading': ['adaptiv', ''], '--metrics': ['x']}),
    'benchmarks.steps': (
        [], {'--batch-size': COUNTS, '--size': COUNTS,
             '--rounds': [*COUNTS, '1'], '--warmup': ['-1', 'x'],
             '--threads': COUNTS, '--modes': ['training'],
             '--dtypes': ['half'], '--compiled': ['2']}),
    'benchmarks.propagation': (
        [], {'--batch-size': COUNTS, '--tokens': COUNTS, '--heads': COUNTS,
             '--head-dims': COUNTS, '--rounds': ['1'],
             '--settings': ['mask'], '--clock': ['cuda']}),
    'dataset_converters/compose_digits.py': (
        [], {'--train': COUNTS, '--val': COUNTS, '--seed': ['-1', 'x'],
             '--size': ['128', '0x0', '64x', 'axb', '32x128']}),
}


@pytest.mark.parametrize('name', COMMANDS)
def test_wrong_arguments(name, capsys, tmp_path, monkeypatch):
    """The usage, the option and the value: what argparse promises."""
    monkeypatch.chdir(tmp_path)
    tool = load_tool(name)
    before, options = COMMANDS[name]
    for option, values in options.items():
        for value in values:
            with pytest.raises(SystemExit) as stopped:
                call_tool(tool, *before, option, value)
            assert stopped.value.code == 2
            told = capsys.readouterr().err
            assert 'usage' in told and option.strip('-')[:5] in told
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('config, message', [
    ('none.py', 'none.py'), ('', ''), ('x.txt', 'x.txt'),
    ('syntax.py', 'syntax.py'), ('empty.py', 'model')])
def test_wrong_configs(config, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'syntax.py').write_text('model = dict(')
    (tmp_path / 'empty.py').write_text('')
    (tmp_path / 'x.txt').write_text('model = 1')
    with pytest.raises(Exception) as raised:
        call_tool(load_tool('train.py'), config)
    assert type(raised.value) in (FileNotFoundError, SyntaxError, OSError,
                                  KeyError, ValueError)
    assert message in str(raised.value)


MISSPELT = {
    'trian_dataloader.batch_size=4': 'train_dataloader',
    'optim_wraper.optimizer.lr=0.1': 'optim_wrapper',
    'max_epochs=3': 'max_epochs',
    'lr=0.1': 'lr',
    'model_backbone.depth=20': 'model_backbone',
}


@pytest.mark.parametrize('option', MISSPELT)
def test_options_that_nobody_reads(option, tmp_path):
    """mmengine adds the key and goes on."""
    message = refused(MISSPELT[option], lambda: call_tool(
        load_tool('train.py'), CONFIG, '--work-dir', tmp_path,
        '--cfg-options', option))
    assert option.partition('=')[0] in message


@pytest.fixture(scope='module')
def model():
    cfg = Config.fromfile(CONFIG)
    init_default_scope(cfg.default_scope)
    cfg.model.data_preprocessor = cfg.data_preprocessor
    return MODELS.build(cfg.model)


def saved(state_dict):
    buffer = io.BytesIO()
    torch.save(dict(meta={}, state_dict=state_dict), buffer)
    return buffer.getvalue()


@settings(BOUNDED, max_examples=60)
@given(data=st.data())
def test_damaged_checkpoints(model, tmp_path_factory, data):
    """Cut, overwritten or foreign files: refused by name, nothing written."""
    folder = tmp_path_factory.mktemp('damaged')
    content = saved(model.state_dict())
    kind = data.draw(st.sampled_from(['cut', 'zeros', 'foreign']))
    if kind == 'cut':
        content = content[:data.draw(st.integers(0, len(content) - 1))]
    elif kind == 'zeros':
        # The index at the end: a disk that lost its last block.
        size = data.draw(st.integers(64, 4096))
        content = content[:-size] + bytes(size)
    else:
        content = data.draw(st.binary(max_size=200))
    path = folder / 'x.pth'
    path.write_bytes(content)
    for tool, *args in (('publish_model.py', path, folder / 'net'),
                        ('test.py', CONFIG, path)):
        message = refused('x.pth', lambda tool=tool, args=args: call_tool(
            load_tool(tool), *args))
        assert 'not a whole PyTorch checkpoint' in message
    assert sorted(folder.iterdir()) == [path]


@settings(BOUNDED, max_examples=25)
@given(data=st.data())
def test_flipped_bytes_are_seen(model, tmp_path_factory, data):
    """By the checksum of each tensor, at which torch.load does not look."""
    path = tmp_path_factory.mktemp('flipped') / 'x.pth'
    content = bytearray(saved(model.state_dict()))
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        largest = max(archive.infolist(), key=lambda info: info.file_size)
    # The data begin behind a header of less.
    place = largest.header_offset + data.draw(
        st.integers(200, largest.file_size - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    assert 'the checksum of' in refused(
        'x.pth', lambda: read_checkpoint(str(path)))


@settings(BOUNDED, max_examples=30)
@given(data=st.data())
def test_weights_that_are_not_finite(model, tmp_path_factory, data):
    """Neither published nor evaluated."""
    folder = tmp_path_factory.mktemp('nan')
    weights = {k: v.clone() for k, v in model.state_dict().items()}
    name = data.draw(st.sampled_from(sorted(
        k for k, v in model.named_parameters())))
    place = data.draw(st.integers(0, weights[name].numel() - 1))
    weights[name].view(-1)[place] = data.draw(NOT_FINITE)
    path = folder / 'x.pth'
    path.write_bytes(saved(weights))
    refused(name, lambda: call_tool(
        load_tool('publish_model.py'), path, folder / 'net'))
    refused(name, lambda: load_weights(
        deepcopy(model), read_checkpoint(str(path)), str(path)))
    assert sorted(folder.iterdir()) == [path]


@settings(BOUNDED, max_examples=30)
@given(content=st.one_of(
    st.none(), st.integers(), st.text(max_size=3), st.just([]), st.just({}),
    st.just(dict(state_dict={})), st.just(dict(state_dict=None)),
    st.just(dict(state_dict=[1])), st.just(dict(state_dict=dict(a=1))),
    st.just(torch.zeros(2))))
def test_checkpoints_without_weights(model, tmp_path_factory, content):
    path = tmp_path_factory.mktemp('content') / 'x.pth'
    torch.save(content, path)
    with pytest.raises(ValueError) as raised:
        call_tool(load_tool('publish_model.py'), path, path.parent / 'net')
    assert 'state_dict' in str(raised.value) or 'no weights' in str(
        raised.value)
    refused('x.pth', lambda: load_weights(
        model, read_checkpoint(str(path)), str(path)))


SMALL = ['train_dataloader.dataset.indices=64',
         'val_dataloader.dataset.indices=16',
         'test_dataloader.dataset.indices=16',
         *IN_PROCESS]


@pytest.mark.parametrize('lr', [math.nan, math.inf, 1e30])
def test_a_diverging_job_ends_at_once(lr, tmp_path):
    with pytest.raises(FloatingPointError, match='training has diverged'):
        call_tool(
            load_tool('train.py'), CONFIG, '--work-dir', tmp_path,
            '--cfg-options', *SMALL, f'optim_wrapper.optimizer.lr={lr}',
            'train_dataloader.batch_size=8', 'log_level=ERROR',
            'default_hooks.checkpoint.interval=1')
    assert not list(tmp_path.glob('*.pth'))


@pytest.mark.parametrize('option, message', [
    ('train_dataloader.dataset.indices=0', 'Classification has no samples'),
    ('val_dataloader.dataset.indices=0', 'Classification has no samples'),
    ('model.head.num_classes=7', 'num_classes=7'),
    ('train_dataloader.dataset.split=all', "got 'all'"),
    ('default_hooks.checkpoint.interval=often', 'interval'),
    ('default_hooks.checkpoint.max_keep_ckpts=0', 'max_keep_ckpts'),
])
def test_a_job_in_vain_ends_before_it_begins(option, message, tmp_path):
    with pytest.raises(ValueError) as raised:
        call_tool(load_tool('train.py'), CONFIG, '--work-dir', tmp_path,
                  '--cfg-options', *SMALL, 'log_level=ERROR', option)
    assert message in str(raised.value)
    assert not list(tmp_path.glob('*.pth'))


@pytest.mark.parametrize('option, value, place', [
    ('data_root', 'other/', 'train_dataloader.dataset.data_root'),
    ('dataset_type', 'COCO', 'train_dataloader.dataset.type'),
    ('maxepochs', '3', None)])
def test_options_that_nothing_reads(option, value, place, tmp_path):
    """A variable of the config file has been used when options come."""
    config = tmp_path / 'variables.py'
    config.write_text(
        "data_root = 'some/'\ndataset_type = 'CustomDataset'\n"
        'train_dataloader = dict(dataset=dict(\n'
        '    type=dataset_type, data_root=data_root))\n')
    with pytest.raises(ValueError) as raised:
        call_tool(load_tool('train.py'), config, '--cfg-options',
                  f'{option}={value}')
    assert f'--cfg-options {option}: ' in str(raised.value)
    assert (place or 'no runner reads it') in str(raised.value)


def prepared(tmp_path, *options, hooks=''):
    config = tmp_path / 'job.py'
    config.write_text(f'_base_ = {CONFIG!r}\n{hooks}\n')
    train = load_tool('train.py')
    arguments = [str(config), '--work-dir', str(tmp_path / 'job'), *options]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr('sys.argv', ['train.py', *arguments])
        args = train.parse_args()
        cfg = train.load_config(args)
        train.prepare_checkpoints(cfg, args)
    return cfg


@pytest.mark.parametrize('hook', [
    'CheckpointHook', 'mmengine.CheckpointHook',
    'mmengine.hooks.CheckpointHook'])
def test_every_name_of_the_hosts_hook_is_replaced(hook, tmp_path):
    cfg = prepared(tmp_path, hooks=(
        f'default_hooks = dict(checkpoint=dict(type={hook!r}))'))
    assert cfg.default_hooks.checkpoint.type == (
        'mmstepnet.DurableCheckpointHook')


def test_classes_as_types_are_replaced(tmp_path):
    """Configs of mmengine's new style."""
    config = tmp_path / 'new_style.py'
    config.write_text(
        'from mmengine.config import read_base\n'
        'from mmengine.hooks import CheckpointHook\n'
        'default_hooks = dict(checkpoint=dict(type=CheckpointHook))\n'
        "model = dict(type='Any')\n")
    train = load_tool('train.py')
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr('sys.argv', ['train.py', str(config)])
        args = train.parse_args()
        cfg = train.load_config(args)
        train.prepare_checkpoints(cfg, args)
    assert cfg.default_hooks.checkpoint.type == (
        'mmstepnet.DurableCheckpointHook')


def test_resuming_looks_where_checkpoints_go(tmp_path):
    start = tmp_path / 'pretrained.pth'
    torch.save(dict(state_dict={}), start)
    hooks = (f'load_from = {str(start)!r}\ndefault_hooks = dict('
             f'checkpoint=dict(out_dir={str(tmp_path / "out")!r}))')
    cfg = prepared(tmp_path, '--resume', hooks=hooks)
    assert (cfg.load_from, cfg.resume) == (str(start), False)
    saved_there = tmp_path / 'out' / 'job' / 'epoch_1.pth'
    saved_there.parent.mkdir(parents=True)
    torch.save(dict(state_dict={}, optimizer={}, meta=dict(iter=1)),
               saved_there)
    for slash in ('', '/'):
        cfg = prepared(tmp_path, '--resume', '--work-dir',
                       f'{tmp_path / "job"}{slash}', hooks=hooks)
        assert (cfg.load_from, cfg.resume) == (str(saved_there), True)
    with pytest.raises(ValueError, match="out_dir='s3://x'"):
        prepared(tmp_path, '--resume', hooks=(
            "default_hooks = dict(checkpoint=dict(out_dir='s3://x'))"))
