"""Checkpoints as data, from wherever mmengine takes them."""

import os
import pickle

import numpy as np
import pytest
import torch
import torch.nn as nn
from mmengine.logging import HistoryBuffer
from mmengine.runner import CheckpointLoader
from mmpretrain.models import SwinTransformer
from safetensors.torch import save_file

from mmstepnet.jobs import checkpoint as checkpoint_module
from mmstepnet.jobs.checkpoint import (
    UnsafeCheckpointError,
    load_weights,
    patch_reading,
    read_checkpoint,
)
from tests.checkpoints import (
    Payload,
    mmengine_content,
    restored_mmengine,  # noqa: F401, a fixture
)
from tests.documents import ROOT
from tests.programs import call_tool, load_tool
from tests.utils import perturb

pytestmark = pytest.mark.usefixtures('restored_mmengine')
CONFIG = ROOT / 'configs/digits/resnet20_stepnet_digits.py'


@pytest.fixture(params=['allowlist', 'unpickler'])
def reader(request, monkeypatch):
    """Both ways of reading, the second one that of old PyTorch versions."""
    if request.param == 'allowlist' and not checkpoint_module.HAS_ALLOWLIST:
        pytest.skip('this PyTorch has no allowlist')
    monkeypatch.setattr(
        checkpoint_module, 'HAS_ALLOWLIST', request.param == 'allowlist'
    )


def save(path, content, zipped=True):
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    return str(path)


@pytest.fixture
def evil(tmp_path):
    """A file that writes another one when it is read as a program."""
    written = tmp_path / 'written'
    return written, save(
        tmp_path / 'evil.pth',
        dict(state_dict={}, meta=Payload(os.system, f'touch {written}')),
    )


@pytest.mark.parametrize('zipped', [True, False])
def test_reads_what_mmengine_stores(tmp_path, reader, zipped):
    content = mmengine_content()
    got = read_checkpoint(save(tmp_path / 'whole.pth', content, zipped))
    assert got['meta'] == content['meta']
    torch.testing.assert_close(
        got['state_dict'], content['state_dict'], rtol=0, atol=0
    )
    assert got['param_schedulers'] == content['param_schedulers']
    scalars = got['message_hub']['log_scalars']
    assert scalars['train/loss'].current() == 0.5
    assert isinstance(scalars['train/lr'], HistoryBuffer)
    info = got['message_hub']['runtime_info']
    np.testing.assert_array_equal(info['palette'], np.arange(6).reshape(2, 3))


@pytest.mark.parametrize('zipped', [True, False])
@pytest.mark.parametrize(
    'payload, name',
    [
        pytest.param(
            lambda path: Payload(os.system, f'touch {path}'),
            'system',
            id='a command',
        ),
        pytest.param(
            lambda path: Payload(open, str(path), 'w'), 'open', id='a file'
        ),
        pytest.param(
            lambda path: Payload(eval, f"open({str(path)!r}, 'w')"),
            'eval',
            id='eval',
        ),
        pytest.param(
            lambda path: Payload(getattr, 'text', 'join'),
            'getattr',
            id='a method of text',
        ),
        pytest.param(
            lambda path: Payload(getattr, HistoryBuffer, '__init__'),
            'getattr',
            id='a constructor',
        ),
        pytest.param(
            lambda path: Payload(torch.load, str(path)),
            'load',
            id='torch.load',
        ),
        pytest.param(
            lambda path: Payload(torch.hub.load, str(path)),
            'load',
            id='torch.hub',
        ),
        pytest.param(
            lambda path: Payload(pickle.loads, b'cos\nsystem\n.'),
            'loads',
            id='pickle',
        ),
        pytest.param(lambda path: path, 'PosixPath', id='a path'),
    ],
)
def test_runs_nothing(tmp_path, reader, payload, name, zipped):
    """Neither we nor mmengine, from a file or an address."""
    written = tmp_path / 'written'
    path = save(
        tmp_path / 'evil.pth',
        dict(state_dict={}, meta=payload(written)),
        zipped,
    )
    patch_reading()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.hub, 'get_dir', lambda: str(tmp_path))
        os.mkdir(tmp_path / 'checkpoints')
        os.link(path, tmp_path / 'checkpoints' / 'evil.pth')
        for read, place in (
            (read_checkpoint, path),
            (CheckpointLoader.load_checkpoint, path),
            (CheckpointLoader.load_checkpoint, 'https://x.y/evil.pth'),
        ):
            with pytest.raises(
                UnsafeCheckpointError,
                match=f'(?s)evil.pth.*{name}.*--trust-checkpoint',
            ):
                read(place)
    assert not written.exists()


@pytest.mark.parametrize(
    'command',
    [
        pytest.param(['test.py', CONFIG, 'EVIL'], id='test'),
        pytest.param(['train.py', CONFIG, '--resume', 'EVIL'], id='resume'),
        pytest.param(
            ['train.py', CONFIG, '--cfg-options', 'load_from=EVIL'],
            id='load_from',
        ),
        pytest.param(
            ['analysis_tools/stiffness.py', CONFIG, 'EVIL'], id='stiffness'
        ),
        pytest.param(
            ['export_onnx.py', CONFIG, 'EVIL', 'x.onnx'], id='export'
        ),
        pytest.param(['publish_model.py', 'EVIL', 'x'], id='publish'),
    ],
)
def test_tools_run_nothing(evil, tmp_path, command):
    written, path = evil
    tool, *arguments = (str(part).replace('EVIL', path) for part in command)
    if tool in ('train.py', 'test.py'):
        arguments += ['--work-dir', tmp_path]
    with pytest.raises(SystemExit, match='--trust-checkpoint'):
        call_tool(load_tool(tool), *arguments)
    assert not written.exists()


def test_trusted_files_run(evil):
    """So what is refused elsewhere would run."""
    written, path = evil
    patch_reading(trusted=True)
    CheckpointLoader.load_checkpoint(path)
    assert written.exists()


def network():
    """As hosts have it, with a mean that the config sets."""
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    model.register_buffer('mean', torch.full((3,), 120.0), persistent=False)
    return model


def load(model, path):
    load_weights(model, read_checkpoint(str(path)), str(path))
    return model


@pytest.mark.parametrize(
    'change',
    [
        pytest.param(
            lambda weights: dict(state_dict=weights, meta={}), id='checkpoint'
        ),
        pytest.param(lambda weights: weights, id='bare'),
        pytest.param(
            lambda weights: {f'module.{k}': v for k, v in weights.items()},
            id='of a wrapper',
        ),
        # Published ones of before hold what the config sets.
        pytest.param(
            lambda weights: {**weights, 'mean': torch.zeros(3)},
            id='with a mean',
        ),
    ],
)
@pytest.mark.parametrize('ending', ['pth', 'safetensors'])
def test_forms_of_weights(tmp_path, change, ending):
    weights = perturb(network()).state_dict()
    path, content = tmp_path / f'net.{ending}', change(weights)
    if ending == 'pth':
        torch.save(content, path)
    else:
        save_file(content.get('state_dict', content), path, dict(a='b'))
    model = load(network(), path)
    torch.testing.assert_close(model.state_dict(), weights, rtol=0, atol=0)
    assert model.mean.tolist() == [120.0] * 3


def with_steps(**steps):
    """A plain layer, and steps of these names."""
    model = nn.ModuleDict(dict(conv=nn.Conv2d(1, 1, 1)))
    for block, name in steps.items():
        step = nn.ModuleDict(dict(attention=nn.Linear(1, 1)))
        model[block] = nn.ModuleDict({name: step})
    return model


TWO = with_steps(layer1='step', layer2='mlp_step')
NO_STEPS = (
    r"net.pth' has no steps at layer1.step, layer2.mlp_step \(2 in all\), and "
    r'.* has: train from it with load_from=/.*/net.pth$'
)
STEPS = (
    r"net.pth' has steps at layer1.step, layer2.mlp_step \(2 in all\), and "
    r'.* has none there: .*mmstepnet.remove_steps'
)
OTHER = 'does not fit the model of this config; is it the checkpoint of .*'


@pytest.mark.parametrize(
    'model, file, text',
    [
        pytest.param(TWO, with_steps(), NO_STEPS, id='a plain file'),
        pytest.param(with_steps(), TWO, STEPS, id='a plain model'),
        pytest.param(
            TWO,
            with_steps(layer1='step'),
            r'has no steps at layer2.mlp_step \(1 in all\)',
            id='a step less',
        ),
        pytest.param(
            TWO,
            nn.ModuleDict(dict(fc=nn.Linear(1, 1))),
            OTHER + r'It lacks conv.weight, conv.bias, layer1.step.attention.'
            r'weight, …, layer2.mlp_step.attention.bias \(6 in all\). The '
            r'model lacks fc.weight, fc.bias \(2 in all\)$',
            id='another network',
        ),
        pytest.param(
            nn.Sequential(*[nn.Linear(2, 1) for _ in range(9)]),
            nn.Sequential(*[nn.Linear(3, 1) for _ in range(9)]),
            OTHER + r'size mismatch for 0.weight: [^:]* \(9 in all\)$',
            id='other shapes',
        ),
    ],
)
def test_another_model_is_told_in_a_sentence(model, file, text, tmp_path):
    path = save(tmp_path / 'net.pth', file.state_dict())
    with pytest.raises(ValueError, match=text):
        load(model, path)


def test_names_of_older_versions_are_the_models_to_read(tmp_path):
    """MMPretrain's first Swin had one norm, `norm`; its own reading knows."""
    model = SwinTransformer(
        'tiny',
        img_size=32,
        patch_size=4,
        window_size=4,
        stage_cfgs=dict(block_cfgs={}),
    )
    old = {
        k.replace('norm3.', 'norm.'): v + 1 if v.is_floating_point() else v
        for k, v in model.state_dict().items()
    }
    load(model, save(tmp_path / 'old.pth', dict(state_dict=old)))
    torch.testing.assert_close(model.norm3.weight, old['norm.weight'])


@pytest.mark.parametrize('ending', ['pth', 'safetensors'])
@pytest.mark.parametrize(
    'spoil',
    [
        pytest.param(lambda content: content[:-300], id='cut at its end'),
        pytest.param(lambda content: content[:9], id='cut at its head'),
        pytest.param(lambda content: b'no checkpoint', id='text'),
    ],
)
def test_damaged_files(tmp_path, ending, spoil):
    path = tmp_path / f'net.{ending}'
    with pytest.raises(FileNotFoundError):
        read_checkpoint(str(path))
    (torch.save if ending == 'pth' else save_file)(
        dict(a=torch.arange(999.0)), path
    )
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(ValueError, match='not a whole'):
        read_checkpoint(str(path))
