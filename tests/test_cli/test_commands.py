"""The command, against the library called by hand."""

import json
import subprocess
import sys

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image
from torchvision.models import ResNet18_Weights, resnet18

import mmstepnet
from mmstepnet.cli import main
from mmstepnet.cli.arguments import READINGS
from mmstepnet.cli.commands import _jobs
from mmstepnet.cli.models import load_model
from mmstepnet.steps import ResidualStep
from mmstepnet.stiffness import READINGS as ALL_READINGS
from mmstepnet.stiffness import (
    Trajectories,
    TrajectoryRecorder,
    measure_gates,
)
from tests.test_steps.cases import randomise

NETS = """
from __future__ import annotations
from dataclasses import dataclass
import torch
from torchvision.models import resnet18
from torchvision.transforms import ToTensor
from beside import CLASSES

@dataclass
class Settings:
    classes: int = CLASSES

def net(classes=Settings().classes):
    torch.manual_seed(0)
    return resnet18(num_classes=classes), ToTensor()

def fewer():
    return net(2)

def gated():
    import mmstepnet
    model, transform = net()
    mmstepnet.insert_steps(model, 'SE')
    for name, p in model.named_parameters():
        if '.attention.' in name:
            torch.nn.init.normal_(p)
    return model, transform

def alone():
    return net()[0]

def batches():
    torch.manual_seed(1)
    return net()[0], [(torch.rand(2, 3, 32, 32),), dict(
        x=torch.rand(1, 3, 32, 32))]

def nothing():
    return 3
"""


@pytest.fixture
def nets(tmp_path):
    (tmp_path / 'beside.py').write_text('CLASSES = 3')
    (tmp_path / 'some_nets.py').write_text(NETS)
    yield f'{tmp_path}/some_nets.py'
    sys.path[:] = [path for path in sys.path if path != str(tmp_path)]
    sys.modules.pop('beside', None)


@pytest.fixture
def pictures(tmp_path):
    """Nine pictures in three folders of classes, one of them turned."""
    folder = tmp_path / 'pictures'
    generator = np.random.default_rng(0)
    for k in range(9):
        (folder / 'bac'[k % 3]).mkdir(parents=True, exist_ok=True)
        pixels = generator.integers(0, 256, (40, 50, 3), np.uint8)
        Image.fromarray(pixels).save(folder / 'bac'[k % 3] / f'{k}.png')
    return folder


@pytest.fixture
def weights(tmp_path):
    torch.manual_seed(0)
    path = tmp_path / 'weights.safetensors'
    safetensors.torch.save_file(resnet18().state_dict(), path)
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
    pytest.importorskip('altair', reason='needs the figures')
    out = tmp_path / 'out'
    assert measure('--images', pictures, '--weights', weights,
                   '--batch-size', 2, '--out', out, '--json') == 0
    recording = out / 'torchvision.resnet18.weights.npz'
    found = Trajectories.load(recording)
    wanted = by_hand(pictures, weights)
    np.testing.assert_allclose(found.adaptive, wanted.adaptive, rtol=1e-4)
    assert found.blocks == wanted.blocks
    printed, shown = capsys.readouterr()
    row = json.loads(printed)
    assert row['network'] == 'torchvision.resnet18.weights'
    assert row['tns']['unit'] == pytest.approx(wanted.tns('unit'), rel=1e-4)
    assert row['tns_all_blocks']['adaptive'] == pytest.approx(
        wanted.tns(mu='all'), rel=1e-4)
    assert row['nsi'] == pytest.approx(dict(zip(
        wanted.blocks, wanted.adaptive.mean(0).tolist())), rel=1e-4)
    assert '5/5' in shown and 'random' not in shown  # batches of two
    assert measure('--images', pictures, '--samples', 1, '--out', out) == 0
    assert 'its weights are random; give --weights' in capsys.readouterr().err
    page = out / 'stiffness_report.html'
    page.unlink()
    assert call('report', recording, '--out', out) == 0
    assert page.is_file()
    printed = capsys.readouterr().out
    # ResNet-18 leaves one block a stage.
    assert '0 by definition' in printed
    assert f'{wanted.tns(mu="all"):.4g} with the mean of all' in printed


@pytest.mark.parametrize('prefix', ['module.', 'module._orig_mod.'])
def test_weights_of_a_wrapper(pictures, weights, tmp_path, prefix):
    wrapped = {f'{prefix}{name}': value for name, value in
               safetensors.torch.load_file(weights).items()}
    path = tmp_path / 'wrapped.ckpt'
    torch.save(dict(state_dict=wrapped, epoch=3), path)
    assert measure('--images', pictures, '--samples', 9, '--weights', path,
                   '--out', tmp_path) == 0
    found = Trajectories.load(tmp_path / 'torchvision.resnet18.wrapped.npz')
    np.testing.assert_allclose(
        found.adaptive, by_hand(pictures, weights).adaptive, rtol=1e-4)


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


def test_batches_of_a_function(nets, tmp_path, capsys):
    assert call('stiffness', f'{nets}:batches', '--device', 'cpu', '--out',
                tmp_path) == 0
    found = Trajectories.load(tmp_path / 'some_nets.py.batches.npz')
    model, batches = sys.modules['some_nets'].batches()
    model.eval()
    with TrajectoryRecorder(model) as recorder, torch.inference_mode():
        model(*batches[0])
        model(**batches[1])
    np.testing.assert_allclose(
        found.adaptive, recorder.trajectories().adaptive, rtol=1e-4)
    assert call('blocks', f'{nets}:batches') == 0
    assert '4 of them recorded' in capsys.readouterr().out


def test_labels(nets, pictures, tmp_path, capsys):
    """Accuracy by the sorted folders, against the model called by hand."""
    model = load_model(f'{nets}:net').model.eval()
    right = 0
    for path in pictures.rglob('*.png'):
        pixels = np.asarray(Image.open(path)).transpose(2, 0, 1) / 255
        with torch.no_grad():
            scores = model(torch.tensor(pixels, dtype=torch.float32)[None])
        right += int(scores.argmax()) == 'abc'.index(path.parent.name)
    assert 0 < right < 9
    given = '--images', pictures, '--labels', '--out', tmp_path
    assert call('stiffness', f'{nets}:net', *given, '--batch-size', 4) == 0
    assert f'accuracy/top1: {100 * right / 9:.2f}' in capsys.readouterr().out
    saved = Trajectories.load(tmp_path / 'some_nets.py.net.npz')
    assert saved.settings['metrics']['accuracy/top1'] == pytest.approx(
        100 * right / 9)
    assert call('stiffness', f'{nets}:fewer', *given) == 2
    assert '(9, 2), but --labels has 3 folders' in capsys.readouterr().err


@pytest.mark.parametrize('json_too', [True, False])
def test_gates(nets, pictures, capsys, json_too):
    """Against the function, called by hand."""
    given = '--labels', '--batch-size', 4, '--device', 'cpu'
    assert call('gates', f'{nets}:gated', pictures, *given,
                *['--json'] * json_too) == 0
    printed = capsys.readouterr().out
    named = load_model(f'{nets}:gated')
    paths = sorted(pictures.rglob('*.png'))
    images = torch.stack([named.prepare(path) for path in paths])
    labels = torch.tensor(['abc'.index(p.parent.name) for p in paths])
    wanted = measure_gates(
        named.model.eval(), images.split(4),
        lambda m: 100 * (m(images).argmax(1) == labels).double().mean())
    if json_too:
        row = json.loads(printed)
        assert row.pop('network') == 'some_nets.py.gated'
        for name, value in wanted._asdict().items():
            assert row[name] == pytest.approx(value, rel=1e-4)
    else:
        lines = printed.splitlines()
        assert [line.split() for line in lines[2:]] == [
            *([name, *(f'{values[name]:.4f}' for values in wanted[:3])]
              for name in wanted.mean),
            *([*f'accuracy/top1 with {kind}:'.split(), f'{value:.2f}']
              for kind, value in wanted.results.items())]
        assert f'{wanted.over_blocks:.4f}' in lines[0]


def test_a_turned_picture_is_measured_upright(nets, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
    prepare = load_model(f'{nets}:net').prepare
    turned = Image.fromarray(np.ascontiguousarray(np.rot90(pixels)))
    exif = Image.Exif()
    exif[0x0112] = 6  # it is to be turned clockwise
    turned.save(tmp_path / 'a.png', exif=exif)
    np.testing.assert_allclose(
        prepare(tmp_path / 'a.png').numpy(),
        pixels.transpose(2, 0, 1) / np.float32(255))


@pytest.mark.parametrize('dtype', [np.uint16, np.float32])
def test_pictures_that_would_be_cut_off(nets, tmp_path, dtype, capsys):
    (tmp_path / 'deep').mkdir()
    Image.fromarray(np.ones((32, 32), dtype)).save(tmp_path / 'deep/a.tif')
    assert call('stiffness', f'{nets}:net', '--images', tmp_path / 'deep',
                '--out', tmp_path) == 2
    assert 'a.tif cannot be read: its values have 16 bits or are float' in (
        capsys.readouterr().err)


def test_blocks(capsys):
    assert call('blocks', 'torchvision:resnet18', '--size', 64) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == '8 residual steps, 4 of them recorded'
    assert lines[1].split()[0] == 'layer1.1' and 'recorded' in lines[1]


RESNET = 'stiffness', 'torchvision:resnet18', '--out', '{}/out'


@pytest.mark.parametrize('args, message', [
    (['blocks', 'resnet18'], "'resnet18' names no model; give"),
    (['blocks', 'keras:resnet'], 'names no model'),
    (['blocks', 'nowhere.py:net'], 'nowhere.py'),
    (['blocks', '{}/no.py:net'], 'no.py'),
    (['blocks', '{}/some_nets.py:nothing'], 'must return a model, or it'),
    (['report', 'no.npz'], 'no.npz'),
    ([*RESNET, '--images', '{}/no'], 'there is no picture in'),
    ([*RESNET, '--images', '{}/broken'], 'x.png cannot be read'),
    (RESNET, 'needs pictures and a transform'),
    (['stiffness', '{}/some_nets.py:alone', '--images', '{}/pictures'],
     'needs pictures and a transform'),
    ([*RESNET, '--labels', '--images', '{}/flat'], 'class folder'),
    ([*RESNET, '--images', '{}/pictures', '--weights', 'no.pth'], 'no.pth'),
    ([*RESNET, '--images', '{}/pictures', '--weights', '{}/a.safetensors'],
     'Missing key(s)'),
    ([*RESNET[:2], *RESNET[1:], '--images', '{}'],
     'two models would be called torchvision.resnet18'),
])
def test_what_is_wrong_is_one_line(args, message, pictures, nets, tmp_path,
                                   capsys):
    for name in ('broken', 'flat'):
        (tmp_path / name).mkdir()
    (tmp_path / 'broken' / 'x.png').write_bytes(b'no picture')
    safetensors.torch.save_file(dict(a=torch.ones(1)),
                                tmp_path / 'a.safetensors')
    assert call(*(arg.format(tmp_path) for arg in args)) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert message in last and last.startswith('mmstepnet: ')


def test_nothing_is_fetched_unasked(monkeypatch):
    def fetch(*args, **kwargs):
        raise AssertionError('fetches')
    monkeypatch.setattr('torch.hub.load_state_dict_from_url', fetch)
    monkeypatch.setattr('torchvision.models._api.load_state_dict_from_url',
                        fetch)
    load_model('torchvision:lraspp_mobilenet_v3_large')


def test_files_of_one_name_in_several_folders(tmp_path):
    paths = [tmp_path / folder / 'best.pth' for folder in ('a', 'b/a', 'b/c')]
    assert list(_jobs(['torchvision:resnet18'], paths[1:])) == [
        'torchvision.resnet18.a.best', 'torchvision.resnet18.c.best']
    with pytest.raises(ValueError, match='two models would be called'):
        _jobs(['torchvision:resnet18'], [paths[0], paths[0]])
    with pytest.raises(ValueError, match='2 models need as many --weights'):
        _jobs(['a', 'b'], paths)


def test_help_needs_no_pytorch():
    code = ('import sys, mmstepnet.cli.arguments as a; a.build_parser()'
            '.format_help(); assert "torch" not in sys.modules; '
            'import mmstepnet; assert mmstepnet.StepNet and mmstepnet.steps')
    subprocess.run([sys.executable, '-c', code], check=True)
    assert READINGS == tuple(ALL_READINGS)


def test_a_network_of_transformers(pictures, tmp_path, capsys):
    transformers = pytest.importorskip('transformers', reason='transformers')
    if int(transformers.__version__.split('.')[0]) < 5:
        pytest.skip('needs transformers 5')
    torch.manual_seed(0)
    model = transformers.ViTModel(transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=3, num_attention_heads=2,
        intermediate_size=64, image_size=32, patch_size=8)).eval()
    processor = transformers.ViTImageProcessor(
        size=dict(height=32, width=32))
    mmstepnet.insert_steps(model, 'SE')
    randomise(*(m.attention for m in model.modules()
                if isinstance(m, ResidualStep)))
    for saved in (model, processor):
        saved.save_pretrained(tmp_path / 'vit')
    mmstepnet.save_steps(model, tmp_path / 'vit')
    assert call('stiffness', f'hf:{tmp_path}/vit', '--images', pictures,
                '--device', 'cpu', '--out', tmp_path) == 0
    images = [Image.open(path) for path in sorted(pictures.rglob('*.png'))]
    with TrajectoryRecorder(model) as recorder, torch.inference_mode():
        model(**processor(images, return_tensors='pt'))
    np.testing.assert_allclose(
        Trajectories.load(tmp_path / 'vit.npz').adaptive,
        recorder.trajectories().adaptive, rtol=1e-3)
    transformers.GPT2Model(transformers.GPT2Config(
        n_embd=32, n_layer=3, n_head=2)).save_pretrained(tmp_path / 'gpt')
    assert call('blocks', f'hf:{tmp_path}/gpt') == 2
    assert 'takes no pictures; give FILE.py:FUNCTION' in (
        capsys.readouterr().err)
