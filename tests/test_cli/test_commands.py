"""The command, against the library called by hand."""

import json
import re

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image
from torchvision.models import ResNet18_Weights, resnet18

import mmstepnet
from mmstepnet.cli import main
from mmstepnet.cli.commands import _jobs
from mmstepnet.cli.models import load_model
from mmstepnet.steps import ResidualStep
from mmstepnet.stiffness import (
    Trajectories,
    TrajectoryRecorder,
    measure_stiffness,
)
from tests.test_steps.cases import randomise


@pytest.fixture
def pictures(tmp_path):
    folder = tmp_path / 'pictures' / 'some'
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    for k in range(5):
        pixels = generator.integers(0, 256, (40, 50, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f'{k}.png')
    return folder.parent


@pytest.fixture
def weights(tmp_path):
    torch.manual_seed(0)
    model = resnet18()
    path = tmp_path / 'weights.safetensors'
    safetensors.torch.save_file(model.state_dict(), path)
    return path


def call(*args):
    return main([str(arg) for arg in args])


def measure(*args):
    return call('stiffness', 'torchvision:resnet18', '--device', 'cpu', *args)


def by_hand(pictures, weights, change=None):
    model = resnet18().eval()
    model.load_state_dict(safetensors.torch.load_file(weights))
    if change is not None:
        change(model)
    prepare = ResNet18_Weights.DEFAULT.transforms()
    images = [prepare(Image.open(path).convert('RGB'))
              for path in sorted(pictures.rglob('*.png'))]
    with TrajectoryRecorder(model) as recorder, torch.inference_mode():
        model(torch.stack(images))
    return recorder.trajectories()


def test_stiffness_is_that_of_the_recorder(pictures, weights, tmp_path,
                                           capsys):
    out = tmp_path / 'out'
    assert measure('--images', pictures, '--weights', weights,
                   '--batch-size', 2, '--out', out) == 0
    found = Trajectories.load(out / 'torchvision.resnet18.weights.npz')
    wanted = by_hand(pictures, weights)
    np.testing.assert_allclose(found.adaptive, wanted.adaptive, rtol=1e-4)
    assert found.blocks == wanted.blocks
    printed = capsys.readouterr().out
    assert f'adaptive {wanted.tns():.3g}' in printed
    name, stiffness, nsi = wanted.stiffest_blocks(1)[0]
    assert f'{name}: {stiffness:.3g}, {nsi:.3g}' in printed
    assert 'all but 0' not in printed
    assert 'random' not in printed


def test_random_weights_are_told(pictures, tmp_path, capsys):
    assert measure(
        '--images', pictures, '--samples', 1, '--out', tmp_path) == 0
    assert 'its weights are random; give --weights' in capsys.readouterr().out


def test_branches_that_are_all_but_zero_are_told(pictures, tmp_path, capsys):
    (tmp_path / 'net.py').write_text(
        'from torchvision.models import resnet18\n'
        'def net():\n'
        '    model = resnet18()\n'
        '    for name, p in model.named_parameters():\n'
        "        if name.endswith(('bn2.weight', 'bn2.bias')):\n"
        '            p.data.mul_(1e-6)\n'
        '    return model\n')
    assert call('stiffness', f'{tmp_path}/net.py:net', '--images', pictures,
                '--samples', 1, '--device', 'cpu', '--out', tmp_path) == 0
    out = capsys.readouterr().out
    assert 'their f is all but 0' in out
    # Digits are there though the numbers are small.
    assert re.search(r'layer1.1: 0, \d+(\.\d+)?e-0\d', out)


def test_steps_of_a_file(pictures, weights, tmp_path):
    def change(model):
        mmstepnet.insert_steps(model)
        randomise(*(m.attention for m in model.modules()
                    if isinstance(m, ResidualStep)))
        mmstepnet.save_steps(model, tmp_path)
    wanted = by_hand(pictures, weights, change)
    assert measure('--images', pictures, '--weights', weights, '--steps',
                   tmp_path, '--out', tmp_path / 'out') == 0
    found = Trajectories.load(
        tmp_path / 'out' / 'torchvision.resnet18.weights.npz')
    np.testing.assert_allclose(found.step_mean, wanted.step_mean, rtol=1e-4)
    assert not np.allclose(found.step_mean, 1)


def test_a_function_arrays_and_the_page(tmp_path, capsys):
    pytest.importorskip('plotly', reason='needs the figures')
    (tmp_path / 'nets.py').write_text(
        'from torchvision.models import resnet18, resnet34\n'
        'def small():\n    return resnet18()\n'
        'def large():\n    return resnet34()\n'
        'def none():\n    return 3\n')
    np.save(tmp_path / 'a.npy', np.random.default_rng(0).random(
        (4, 3, 32, 32), np.float32))
    nets = tmp_path / 'nets.py'
    assert call('stiffness', f'{nets}:small', f'{nets}:large', '--arrays',
                tmp_path / 'a.npy', '--samples', 3, '--device', 'cpu',
                '--out', tmp_path) == 0
    assert (tmp_path / 'stiffness_report.html').is_file()
    recordings = sorted(tmp_path.glob('*.npz'))
    assert [len(Trajectories.load(path)) for path in recordings] == [3, 3]
    assert call('report', *recordings, '--out', tmp_path / 'again') == 0
    assert (tmp_path / 'again' / 'stiffness_report.html').is_file()
    assert call('stiffness', f'{nets}:none', '--arrays', tmp_path / 'a.npy',
                '--out', tmp_path) == 2
    assert 'returned a int; it must return a model' in (
        capsys.readouterr().err)


def test_text(tmp_path, capsys):
    transformers = pytest.importorskip('transformers', reason='transformers')
    if int(transformers.__version__.split('.')[0]) < 5:
        pytest.skip('needs transformers 5')
    transformers.GPT2Config(n_embd=32, n_layer=3, n_head=2).save_pretrained(
        tmp_path / 'gpt')
    (tmp_path / 'a.txt').write_text('residual networks ' * 40)
    assert call('stiffness', f'hf:{tmp_path}/gpt', '--text',
                tmp_path / 'a.txt', '--tokens', 32, '--device', 'cpu',
                '--out', tmp_path) == 0
    assert 'bytes are the tokens' in capsys.readouterr().out
    found = Trajectories.load(tmp_path / 'gpt.npz')
    assert len(found) == 720 // 32 and len(found.blocks) == 4


def test_labels(tmp_path, capsys):
    """Accuracy by the sorted folders, against the model called by hand."""
    generator = np.random.default_rng(0)
    for k in range(9):
        folder = tmp_path / 'pictures' / 'bac'[k % 3]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(
            0, 256, (40, 50, 3), np.uint8)).save(folder / f'{k}.png')
    net = tmp_path / 'net.py'
    net.write_text(
        'import torch\nfrom torchvision.models import resnet18\n'
        'from torchvision.transforms import ToTensor\n'
        'def few(classes=3):\n    torch.manual_seed(0)\n'
        '    return resnet18(num_classes=classes), ToTensor()\n'
        'def fewer():\n    return few(2)\n')
    model = load_model(f'{net}:few').model.eval()
    right = 0
    for path in (tmp_path / 'pictures').rglob('*.png'):
        pixels = np.asarray(Image.open(path)).transpose(2, 0, 1) / 255
        with torch.no_grad():
            scores = model(torch.tensor(pixels, dtype=torch.float32)[None])
        right += int(scores.argmax()) == 'abc'.index(path.parent.name)
    given = 'stiffness', f'{net}:few', '--images', tmp_path / 'pictures'
    out = tmp_path / 'out'
    assert call(*given, '--labels', '--out', out, '--batch-size', 4) == 0
    assert f'accuracy/top1 {100 * right / 9:.2f} %' in capsys.readouterr().out
    saved = Trajectories.load(out / 'net.py.few.npz')
    assert saved.settings['metrics']['accuracy/top1'] == pytest.approx(
        100 * right / 9)
    assert call('report', out / 'net.py.few.npz', '--out', out) == 0
    assert f'accuracy/top1 {100 * right / 9:.2f} %' in capsys.readouterr().out
    assert call('stiffness', f'{net}:fewer', *given[2:], '--labels') == 2
    assert 'knows 2 classes, but --images has 3' in capsys.readouterr().err
    Image.fromarray(np.zeros((40, 50, 3), np.uint8)).save(
        tmp_path / 'pictures' / 'x.png')
    assert call(*given, '--labels') == 2
    assert 'one folder a class' in capsys.readouterr().err


def test_blocks(capsys):
    assert call('blocks', 'torchvision:resnet18', '--size', 64) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == '8 residual steps, 4 of them recorded'
    assert lines[1].split()[0] == 'layer1.1' and 'recorded' in lines[1]


WRONG = {
    'no kind': (['blocks', 'resnet18'], "'resnet18' names no model; give"),
    'another kind': (['blocks', 'keras:resnet'], 'names no model'),
    'a typing error': (['blocks', 'torchvision:resnet81'],
                       "has no model 'resnet81'; near are"),
    'no file': (['blocks', 'nowhere.py:net'], 'there is no file nowhere.py'),
    'no pictures': (['stiffness', 'torchvision:resnet18', '--images', '{}'],
                    'there is no picture (.png'),
    'no folder': (['stiffness', 'torchvision:resnet18', '--images', '{}/no'],
                  'there is no folder'),
    'no labels': (['stiffness', 'torchvision:resnet18', '--labels', '--text',
                   __file__], '--labels are the folders of --images'),
    'no weights': (['stiffness', 'torchvision:resnet18', '--images', '{}',
                    '--weights', 'no.pth'], 'there is no file no.pth'),
    'twice': (['stiffness', 'torchvision:resnet18', 'torchvision:resnet18',
               '--images', '{}'], 'two models would be called'),
    'text for pictures': (['stiffness', 'torchvision:resnet18', '--text',
                           __file__], 'takes no text; give --images'),
    'no such device': (['stiffness', 'torchvision:resnet18', '--images',
                        '{}', '--device', 'abacus'],
                       '--device abacus cannot be used (RuntimeError'),
    'another tag': (['blocks', 'timm:resnet18.none'], 'cannot be built'),
    'no function': (['blocks', f'{__file__}:WRONG'], 'cannot be built'),
    'three sizes': (['blocks', 'torchvision:resnet18', '--size', *'123'],
                    'one number, or a height and a width, got [1, 2, 3]'),
    'another size': (['blocks', 'timm:vit_tiny_patch16_224', '--size', '64'],
                     'does not run on (1, 3, 64, 64); give --size'),
    'no recording': (['report', 'no.npz'], 'no.npz'),
}


@pytest.mark.parametrize('what', WRONG)
def test_what_is_wrong_is_one_line(what, tmp_path, capsys):
    args, message = WRONG[what]
    assert call(*(arg.format(tmp_path) for arg in args)) == 2
    error = capsys.readouterr().err
    assert message in error and error.startswith('mmstepnet: ')
    assert error.count('\n') == 1


@pytest.mark.parametrize('args, message', [
    (['stifness'], "invalid choice: 'stifness'"),
    (['stiffness', 'torchvision:resnet18'], 'one of the arguments --images'),
    (['blocks', 'torchvision:resnet18', '--size', 'x'], "invalid int value"),
    (['stiffness', 'torchvision:resnet18', '--samples', '0'],
     '--samples: must be a positive integer, got 0'),
])
def test_what_is_no_command_is_one_line(args, message, capsys):
    with pytest.raises(SystemExit) as end:
        call(*args)
    error = capsys.readouterr().err
    assert end.value.code == 2 and error.count('\n') == 1
    assert message in error and '--help tells more' in error


@pytest.mark.parametrize('content, message', [
    (np.ones((2, 3, 32, 32)), 'does not run on these samples, (2, 3, 32, 32)'),
    (np.ones((2, 5, 32, 32), np.float32), 'does not run on these samples'),
    (np.float32(1), 'must hold one array'), (None, 'is no .npy file'),
])
def test_arrays_of_another_kind(content, message, tmp_path, capsys):
    path = tmp_path / 'a.npy'
    path.write_text('1, 2')
    if content is not None:
        np.save(path, content)
    assert measure('--arrays', path, '--out', tmp_path / 'out') == 2
    error = capsys.readouterr().err
    assert message in error and error.count('\n') == 1


def test_steps_of_a_repository(pictures, tmp_path, monkeypatch, capsys):
    given = []
    monkeypatch.setattr('mmstepnet.cli.commands.load_steps',
                        lambda model, path: given.append(path))
    assert measure('--images', pictures, '--steps', 'hf://some/body',
                   '--out', tmp_path) == 0
    assert given == ['hf://some/body']


def test_nothing_is_fetched_unasked(monkeypatch):
    def fetch(*args, **kwargs):
        raise AssertionError('fetches')
    monkeypatch.setattr('torch.hub.load_state_dict_from_url', fetch)
    monkeypatch.setattr('torchvision.models._api.load_state_dict_from_url',
                        fetch)
    load_model('torchvision:lraspp_mobilenet_v3_large')


def test_recordings_of_one_name(pictures, tmp_path, capsys):
    found = measure_stiffness(resnet18(), [torch.rand(2, 3, 32, 32)])
    paths = [tmp_path / run / 'last' / 'a.npz' for run in 'xy']
    for path in paths:
        found.save(path)
    assert call('report', *paths, '--out', tmp_path) == 0
    printed = capsys.readouterr().out
    assert all(f'{run}.last.a: 2 samples' in printed for run in 'xy')
    assert call('report', *paths, paths[0], '--out', tmp_path) == 2
    assert 'is given twice' in capsys.readouterr().err


def test_weights_of_another_model(pictures, tmp_path, capsys):
    path = tmp_path / 'a.safetensors'
    safetensors.torch.save_file(dict(a=torch.ones(1)), path)
    assert measure('--images', pictures, '--weights', path) == 2
    assert 'holds no weights of this model: Error(s)' in (
        capsys.readouterr().err)


def test_a_broken_picture_is_named(pictures, weights, tmp_path, capsys):
    (pictures / 'x.png').write_bytes(b'no picture')
    assert measure('--images', pictures, '--out', tmp_path / 'out') == 2
    assert 'x.png cannot be read' in capsys.readouterr().err


def test_table_is_what_was_recorded(pictures, weights):
    found = by_hand(pictures, weights)
    table = found.table()
    assert {len(column) for column in table.values()} == {
        found.adaptive.size}
    k = 7
    sample, block = divmod(k, len(found.blocks))
    assert table['sample'][k] == sample
    assert table['block'][k] == found.blocks[block]
    assert table['adaptive'][k] == found.adaptive[sample, block]
    json.dumps(table)


def test_files_of_one_name_in_several_folders(tmp_path):
    paths = [tmp_path / folder / 'best.pth' for folder in ('a', 'b/a', 'b/c')]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    label = f'resnet18.{tmp_path.name}'
    assert [name for name, *_ in _jobs(['torchvision:resnet18'], paths[1:])
            ] == ['torchvision.resnet18.a.best', 'torchvision.resnet18.c.best']
    assert [name for name, *_ in _jobs(['torchvision:resnet18'], paths)] == [
        f'torchvision.{label}.a.best', 'torchvision.resnet18.b.a.best',
        'torchvision.resnet18.b.c.best']
    with pytest.raises(ValueError, match='two models would be called'):
        _jobs(['torchvision:resnet18'], [paths[0], paths[0]])
