"""The command, against the library called by hand."""

import json
import os
import re
import subprocess
import sys
from argparse import Namespace
from importlib import import_module
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torchvision.models import ResNet18_Weights, resnet18
from torchvision.transforms import ToTensor

import mmstepnet
from mmstepnet.cli import main
from mmstepnet.cli.arguments import build_parser
from mmstepnet.cli.choices import READINGS
from mmstepnet.cli.models import build_model, picture_reader
from mmstepnet.cli.networks import label_networks
from mmstepnet.cli.pictures import list_pictures
from mmstepnet.steps import ResidualStep
from mmstepnet.stiffness import FIELDS, Trajectories, measure_gates
from mmstepnet.stiffness import READINGS as ALL_READINGS
from tests.documents import ROOT
from tests.utils import randomise

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

def other():
    return net()

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

def unmoved():
    import mmstepnet
    model, transform = net()
    mmstepnet.insert_steps(model, 'SE')
    return model, transform

def alone():
    return net()[0]

def sized():
    from torchvision.transforms import Compose, Resize
    return net()[0], Compose([Resize((48, 48)), ToTensor()])

def batches():
    torch.manual_seed(1)
    return net()[0], [[torch.rand(2, 3, 32, 32), torch.arange(2)], dict(
        x=torch.rand(1, 3, 32, 32))]

def nothing():
    return 3
"""
CONFIG = ROOT / 'configs' / 'imagenet' / 'resnet50_plain_imagenet.py'


@pytest.fixture
def nets(tmp_path):
    (tmp_path / 'beside.py').write_text('CLASSES = 3')
    (tmp_path / 'some_nets.py').write_text(NETS)
    yield f'{tmp_path}/some_nets.py'
    sys.path[:] = [path for path in sys.path if path != str(tmp_path)]
    sys.modules.pop('beside', None)


@pytest.fixture
def pictures(tmp_path):
    """Nine pictures in three folders of classes."""
    folder = tmp_path / 'pictures'
    generator = np.random.default_rng(0)
    for k in range(9):
        (folder / 'bac'[k % 3]).mkdir(parents=True, exist_ok=True)
        pixels = generator.integers(0, 256, (40, 50, 3), np.uint8)
        Image.fromarray(pixels).save(folder / 'bac'[k % 3] / f'{k}.png')
    return folder


def call(*args):
    return main([str(arg) for arg in args])


def paths_of(folder):
    return sorted(folder.rglob('*.png'))


def opened(folder):
    return [Image.open(path) for path in paths_of(folder)]


def with_steps(model, path, attention='StepNet'):
    """Put steps that have moved into a model, and write them."""
    mmstepnet.insert_steps(model, attention)
    randomise(
        *(m.attention for m in model.modules() if isinstance(m, ResidualStep))
    )
    mmstepnet.save_steps(model, path)


def of_torchvision(folder, pictures, prefix='', steps=False):
    """Weights of a wrapper, or steps of a file."""
    model, prepare = resnet18(), ResNet18_Weights.DEFAULT.transforms()
    weights = {prefix + key: t for key, t in model.state_dict().items()}
    if prefix:
        weights['n_averaged'] = torch.tensor(7)
    torch.save(dict(epoch=3, state_dict=weights), folder / 'net.ckpt')
    args = ['torchvision:resnet18', '--weights', folder / 'net.ckpt']
    if steps:
        with_steps(model, folder)
        args += ['--steps', folder]
    return args, model, [torch.stack(list(map(prepare, opened(pictures))))]


def of_a_function(folder, pictures):
    name = f'{folder}/some_nets.py:batches'
    named = build_model(name)
    return [name], named.model, named.batches


def of_transformers(folder, pictures):
    hf = pytest.importorskip('transformers', reason='transformers')
    if int(hf.__version__.split('.')[0]) < 5:
        pytest.skip('needs transformers 5')
    model = hf.ViTModel(
        hf.ViTConfig(
            hidden_size=32,
            num_hidden_layers=3,
            num_attention_heads=2,
            intermediate_size=64,
            image_size=32,
            patch_size=8,
        )
    )
    processor = hf.ViTImageProcessor(size=dict(height=32, width=32))
    with_steps(model, folder / 'vit', 'SE')
    model.save_pretrained(folder / 'vit')
    processor.save_pretrained(folder / 'vit')
    return (
        [f'hf:{folder}/vit'],
        model,
        [dict(processor(opened(pictures), return_tensors='pt'))],
    )


def of_openmmlab(folder, pictures):
    mmpretrain = pytest.importorskip('mmpretrain')
    from mmengine.dataset import Compose
    from mmengine.logging import HistoryBuffer
    from mmengine.registry import init_default_scope

    init_default_scope('mmpretrain')
    model = mmpretrain.get_model(CONFIG)
    log = dict(log_scalars={'loss': HistoryBuffer([1.0], [1])})
    torch.save(
        dict(state_dict=model.state_dict(), meta={}, message_hub=log),
        folder / 'net.pth',
    )
    pipeline = Compose(model._config.test_dataloader.dataset.pipeline)
    batch = model.data_preprocessor(
        dict(
            inputs=[
                pipeline(dict(img_path=str(path)))['inputs']
                for path in paths_of(pictures)
            ]
        )
    )
    return (
        [f'mm:{CONFIG}', '--weights', folder / 'net.pth'],
        model,
        [batch['inputs']],
    )


@pytest.mark.parametrize(
    'make, options',
    [
        pytest.param(
            of_torchvision,
            dict(prefix='module._orig_mod.'),
            id='averaged weights in wrappers',
        ),
        pytest.param(of_torchvision, dict(steps=True), id='with steps'),
        pytest.param(of_a_function, {}, id='a function'),
        pytest.param(of_transformers, {}, id='transformers'),
        pytest.param(of_openmmlab, {}, id='OpenMMLab'),
    ],
)
def test_stiffness_is_that_of_the_library(
    make, options, nets, pictures, tmp_path, capsys
):
    for path in paths_of(pictures)[2:]:
        path.unlink()
    torch.manual_seed(0)
    args, model, batches = make(tmp_path, pictures, **options)
    wanted = mmstepnet.measure_stiffness(model, batches)
    images = [] if make is of_a_function else ['--images', pictures]
    assert (
        call(
            'stiffness',
            *args,
            *images,
            '--device',
            'cpu',
            '--out',
            tmp_path / 'out',
        )
        == 0
    )
    (path,) = (tmp_path / 'out').glob('*.npz')
    found = Trajectories.load(path)
    assert found.blocks == wanted.blocks and len(found.blocks) > 3
    weights = 'net' if '--weights' in args else None
    assert found.settings.get('weights') == weights
    steps = str(tmp_path) if '--steps' in args else None
    assert found.settings.get('steps') == steps
    # With steps it is another network than without.
    assert path.stem.endswith(f'+{tmp_path.name}') == bool(steps)
    assert f'{path.stem} (' in capsys.readouterr().out
    for name in FIELDS:
        np.testing.assert_allclose(
            getattr(found, name), getattr(wanted, name), rtol=1e-3
        )


def test_what_is_printed(nets, pictures, tmp_path, capsys):
    pytest.importorskip('altair', reason='needs the figures')
    out = tmp_path / 'out'
    given = '--images', pictures, '--device', 'cpu', '--out', out
    assert (
        call('stiffness', f'{nets}:net', *given, '--batch-size', 2, '--json')
        == 0
    )
    recording = out / 'some_nets.py.net.npz'
    wanted = Trajectories.load(recording)
    printed, shown = capsys.readouterr()
    row = json.loads(printed)
    assert row['network'] == 'some_nets.py.net'
    assert row['tns']['unit'] == pytest.approx(wanted.tns('unit'))
    assert row['tns_all_blocks']['adaptive'] == pytest.approx(
        wanted.tns(mu='all')
    )
    assert row['nsi'] == pytest.approx(
        dict(zip(wanted.blocks, wanted.adaptive.mean(0).tolist()))
    )
    assert '5/5' in shown and 'random' not in shown  # batches of two
    assert (
        call('stiffness', 'torchvision:resnet18', *given, '--samples', 1) == 0
    )
    assert 'its weights are random; give --weights' in capsys.readouterr().err
    page = out / 'stiffness_report.html'
    assert page.read_text('utf-8').count('resnet18 are random.') == 2
    page.unlink()
    assert call('report', recording, '--out', out) == 0
    assert page.is_file() and 'resnet18' not in page.read_text('utf-8')
    assert call('report', out, '--out', out) == 0
    assert 'torchvision.resnet18' in page.read_text('utf-8')
    capsys.readouterr()
    assert call('report', recording, '--out', out) == 0
    printed = capsys.readouterr().out
    # ResNet-18 leaves one block a stage.
    assert '0 by definition' in printed
    assert f'{wanted.tns(mu="all"):.4g} with the mean of all' in printed
    asked = '--reading', 'returned', '--out', out
    assert call('report', recording, *asked, '--json') == 0
    row = json.loads(capsys.readouterr().out)
    assert row['reading'] == 'returned'
    assert row['nsi'] == pytest.approx(
        dict(zip(wanted.blocks, wanted.returned.mean(0).tolist()))
    )
    assert 'reading returned' in page.read_text('utf-8')


@pytest.mark.parametrize(
    'more, count, said',
    [
        ((), 4, '4 of 9 pictures are measured'),
        (('--samples', 'all'), 9, ''),
        (('--labels',), 9, ''),
        (('--samples', 2), 2, ''),
        (('--samples', 20), 9, ''),
    ],
    ids=str,
)
def test_how_many_pictures(
    more, count, said, nets, pictures, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr('mmstepnet.cli.pictures.FEW', 4)
    assert (
        call(
            'stiffness',
            f'{nets}:net',
            f'{nets}:other',
            '--images',
            pictures,
            '--out',
            tmp_path,
            *more,
        )
        == 0
    )
    err = capsys.readouterr().err
    assert err.count('pictures are measured') == bool(said) and said in err
    named = build_model(f'{nets}:net')
    drawn = np.linspace(0, 8, count).round().astype(int)
    wanted = mmstepnet.measure_stiffness(
        named.model,
        [torch.stack([named.prepare(paths_of(pictures)[k]) for k in drawn])],
    )
    found = Trajectories.load(tmp_path / 'some_nets.py.net.npz')
    np.testing.assert_allclose(found.adaptive, wanted.adaptive, rtol=1e-3)


def test_samples_are_a_number_or_all(capsys):
    with pytest.raises(SystemExit):
        call('gates', 'net.py:net', '--samples', 'many')
    assert "a positive integer or 'all', got 'many'" in capsys.readouterr().err


def test_labels(nets, pictures, tmp_path, capsys):
    """Accuracy by the sorted folders, against the model called by hand."""
    model = build_model(f'{nets}:net').model.eval()
    right = 0
    for path in paths_of(pictures):
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
        100 * right / 9
    )
    assert call('stiffness', f'{nets}:fewer', *given) == 2
    assert '(9, 2), but --labels has 3 folders' in capsys.readouterr().err


@pytest.fixture
def classifier(tmp_path):
    """Makes a folder of a ViT that names its classes, and of its processor."""
    hf = pytest.importorskip('transformers', reason='transformers')
    if int(hf.__version__.split('.')[0]) < 5:
        pytest.skip('needs transformers 5')

    def make(kind, names):
        torch.manual_seed(3)
        model = getattr(hf, kind)(
            hf.ViTConfig(
                hidden_size=32,
                num_hidden_layers=3,
                num_attention_heads=2,
                intermediate_size=64,
                image_size=32,
                patch_size=8,
                id2label=dict(enumerate(names)),
                label2id={name: k for k, name in enumerate(names)},
            )
        )
        randomise(model)
        with_steps(model, tmp_path / 'vit', 'SE')
        model.save_pretrained(tmp_path / 'vit')
        processor = hf.ViTImageProcessor(size=dict(height=32, width=32))
        processor.save_pretrained(tmp_path / 'vit')
        return model.eval(), processor

    return make


@pytest.mark.parametrize(
    'names, in_order',
    [
        pytest.param('cab', False, id='its names'),
        pytest.param('dcab', False, id='a class without a folder'),
        pytest.param('xyz', True, id='other names'),
    ],
)
def test_labels_of_a_folder_of_transformers(
    names, in_order, classifier, pictures, tmp_path, capsys
):
    """Its own names say which folder is which class; else the order does."""
    model, processor = classifier('ViTForImageClassification', names)
    right = 0
    for path in paths_of(pictures):
        with torch.no_grad():
            scores = model(
                **processor(Image.open(path), return_tensors='pt')
            ).logits
        order = 'abc' if in_order else names
        right += int(scores.argmax()) == order.index(path.parent.name)
    name, given = f'hf:{tmp_path}/vit', ('--labels', '--json')
    assert (
        call(
            'stiffness',
            name,
            *given,
            '--images',
            pictures,
            '--out',
            tmp_path / 'out',
        )
        == 0
    )
    assert ('in alphabetical order' in capsys.readouterr().err) == in_order
    found = Trajectories.load(tmp_path / 'out' / 'vit.npz')
    assert found.settings['metrics']['accuracy/top1'] == pytest.approx(
        100 * right / 9
    )
    # The blocks are those of the base model, by its names.
    images = dict(processor(opened(pictures), return_tensors='pt'))
    wanted = mmstepnet.measure_stiffness(model.vit, [images])
    assert found.blocks == wanted.blocks and len(found.blocks) > 3
    np.testing.assert_allclose(found.nsi(), wanted.nsi(), rtol=1e-3)
    assert call('gates', name, pictures, *given) == 0
    printed, shown = capsys.readouterr()
    assert shown.count('in alphabetical order') == in_order
    row = json.loads(printed)
    assert row['results']['attention'] == pytest.approx(100 * right / 9)
    assert list(row['mean']) == list(measure_gates(model.vit, [images]).mean)


NUMBERED = dict(c=0, a=1, b=2)


@pytest.mark.parametrize(
    'label2id',
    [
        pytest.param(None, id='none'),
        pytest.param(dict(LABEL_0=0, LABEL_1=1, LABEL_2=2), id='made up'),
        pytest.param(dict(c='0', a='1', b='2'), id='numbers in texts'),
    ],
)
def test_names_of_classes_by_their_numbers_alone(
    label2id, classifier, tmp_path
):
    """transformers makes no label2id of the id2label that it is given."""
    classifier('ViTForImageClassification', NUMBERED)
    change_config(tmp_path / 'vit', label2id)
    name = f'hf:{tmp_path}/vit'
    assert build_model(name, labels=True).classes == NUMBERED


def test_two_orders_of_classes_are_refused(classifier, tmp_path):
    classifier('ViTForImageClassification', NUMBERED)
    change_config(tmp_path / 'vit', dict(a=0, c=1, b=2))
    with pytest.raises(ValueError, match="has 'a' as class 0 in label2id, an"):
        build_model(f'hf:{tmp_path}/vit', labels=True)


def test_half_precision_is_read_as_float32(classifier, tmp_path):
    """As pictures are."""
    model, _ = classifier('ViTForImageClassification', NUMBERED)
    model.half().save_pretrained(tmp_path / 'vit')
    model = build_model(f'hf:{tmp_path}/vit', labels=True).model
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def change_config(folder, label2id):
    path = folder / 'config.json'
    path.write_text(
        json.dumps(json.loads(path.read_text()) | dict(label2id=label2id))
    )


@pytest.mark.parametrize(
    'kind, names, words',
    [
        (
            'ViTForImageClassification',
            'xy',
            '(9, 2), but --labels has 3 folders',
        ),
        (
            'ViTModel',
            'abc',
            'no scores of classes, which --labels needs, but a B',
        ),
    ],
    ids=['fewer classes', 'base model'],
)
def test_folders_of_transformers_without_such_scores(
    kind, names, words, classifier, pictures, tmp_path, capsys
):
    classifier(kind, names)
    assert (
        call(
            'stiffness',
            f'hf:{tmp_path}/vit',
            '--labels',
            '--images',
            pictures,
            '--out',
            tmp_path,
        )
        == 2
    )
    assert words in capsys.readouterr().err


BESIDE = dict(
    epoch=3,
    best_accuracy=torch.tensor(0.5),
    optimizer=dict(state={0: dict(momentum_buffer=torch.ones(2))}),
    scaler=dict(scale=65536.0, _growth_tracker=0),
    callbacks=dict(ModelCheckpoint=dict(best_model_score=torch.ones(1))),
    averaging_state=dict(n_averaged=torch.tensor(7)),
    hyper_parameters=dict(lr=0.1, class_weights=torch.ones(3)),
    criterion=dict(weight=torch.ones(3)),
)
"""What trainers of several libraries keep beside the weights."""


@pytest.mark.parametrize(
    'key', ['model', 'model_state_dict', 'state_dict', 'net', None]
)
def test_weights_of_a_checkpoint(key, nets, tmp_path):
    """Beside other tensors, and settings under another key."""
    named = build_model(f'{nets}:alone')
    wanted = named.model.state_dict()
    content = wanted
    if key is not None:
        content = {'model': dict(depth=18), **BESIDE, key: wanted}
    torch.save(content, tmp_path / 'net.pt')
    torch.testing.assert_close(
        named.read(tmp_path / 'net.pt'), wanted, rtol=0, atol=0
    )


@pytest.mark.parametrize('averaged', [False, True])
def test_weights_of_a_checkpoint_of_timm(averaged, nets, tmp_path):
    timm = pytest.importorskip('timm', reason='timm')
    named = build_model(f'{nets}:alone')
    saver = timm.utils.CheckpointSaver(
        named.model,
        torch.optim.SGD(named.model.parameters(), lr=0.1, momentum=0.9),
        model_ema=timm.utils.ModelEmaV3(named.model) if averaged else None,
        checkpoint_dir=str(tmp_path),
    )
    saver.save_checkpoint(0, 0.5)
    path = tmp_path / 'last.pth.tar'
    if averaged:
        with pytest.raises(ValueError, match='state_dict, state_dict_ema;'):
            named.read(path)
    else:
        wanted = named.model.state_dict()
        torch.testing.assert_close(named.read(path), wanted, rtol=0, atol=0)


def log_of_a_runner():
    logging = pytest.importorskip('mmengine.logging')
    return logging.HistoryBuffer([1.0], [1])


@pytest.mark.parametrize(
    'content, words',
    [
        (
            lambda weights: dict(state_dict=weights, model=weights),
            'net.pt has weights under state_dict, model; save those',
        ),
        (
            lambda weights: dict(
                model=weights,
                model_ema=torch.optim.swa_utils.AveragedModel(
                    resnet18()
                ).state_dict(),
                **BESIDE,
            ),
            r"model, model_ema; .*net.pt', weights_only=True\)\['model'\]",
        ),
        (
            lambda weights: [weights],
            'net.pt holds a list, expected a state dict',
        ),
        (
            lambda weights: dict(model=weights, args=Namespace(lr=0.1)),
            'net.pt is not read: .* holds other objects than tensors',
        ),
        (
            lambda weights: dict(
                state_dict=weights, message_hub=log_of_a_runner()
            ),
            'of a Runner of MMEngine, give mm:CONFIG',
        ),
    ],
    ids=['two dicts', 'averaged', 'list', 'settings', 'runner'],
)
def test_weights_that_are_not_read(content, words, nets, tmp_path):
    named = build_model(f'{nets}:alone')
    torch.save(content(named.model.state_dict()), tmp_path / 'net.pt')
    with pytest.raises(ValueError, match=words):
        named.read(tmp_path / 'net.pt')


@pytest.mark.parametrize('name', ['net.pt', 'net.safetensors'])
@pytest.mark.parametrize(
    'content',
    [b'', b'hello', b'(hello', b'Go\n'],
    ids=['empty', 'text', 'parenthesis', 'a number to unpickle'],
)
def test_weights_of_another_program(content, name, nets, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match='it is no file of PyTorch'):
        build_model(f'{nets}:alone').read(tmp_path / name)


def test_pictures_in_memory(pictures):
    pytest.importorskip('mmpretrain')
    named = build_model(f'mm:{ROOT}/configs/digits/resnet20_plain_digits.py')
    with pytest.raises(ValueError, match='whose test pipeline reads no files'):
        named.picture(paths_of(pictures)[0])


def test_a_file_in_a_folder_with_a_colon(nets, tmp_path, capsys):
    folder = tmp_path / 'a:b'
    folder.mkdir()
    (folder / 'beside.py').write_text('CLASSES = 3')
    (folder / 'utils.py').write_text(NETS)
    try:
        assert call('blocks', f'{folder}/utils.py:batches') == 0
    finally:
        sys.path.remove(str(folder))
    assert 'layer1.1' in capsys.readouterr().out


@pytest.mark.parametrize('json_too', [True, False])
def test_gates(nets, pictures, capsys, json_too):
    """Against the function, called by hand."""
    given = '--labels', '--batch-size', 4, '--device', 'cpu'
    folder = ['--images', pictures] if json_too else [pictures]
    assert (
        call('gates', f'{nets}:gated', *folder, *given, *['--json'] * json_too)
        == 0
    )
    printed = capsys.readouterr().out
    named, paths = build_model(f'{nets}:gated'), paths_of(pictures)
    images = torch.stack([named.prepare(path) for path in paths])
    labels = torch.tensor(['abc'.index(p.parent.name) for p in paths])
    wanted = measure_gates(
        named.model.eval(),
        images.split(4),
        lambda m: 100 * (m(images).argmax(1) == labels).double().mean(),
    )
    if json_too:
        row = json.loads(printed)
        assert row.pop('network') == 'some_nets.py.gated'
        for name, value in wanted._asdict().items():
            assert row[name] == pytest.approx(value, rel=1e-4)
    else:
        lines = printed.splitlines()
        assert [line.split() for line in lines[2:]] == [
            *(
                [name, *(f'{values[name]:#.4g}' for values in wanted[:3])]
                for name in wanted.mean
            ),
            *(
                [*f'accuracy/top1 with {kind}:'.split(), f'{value:.2f}']
                for kind, value in wanted.results.items()
            ),
        ]
        assert f'{wanted.over_blocks:#.4g}' in lines[0]


def test_gates_that_have_not_moved(nets, pictures, capsys):
    words = 'the gates have hardly moved'
    for name in ('unmoved', 'gated'):
        call('gates', f'{nets}:{name}', pictures, '--samples', 2)
        assert (words in capsys.readouterr().out) == (name == 'unmoved')


def test_a_turned_picture_is_measured_upright(nets, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
    prepare = build_model(f'{nets}:net').prepare
    turned = Image.fromarray(np.ascontiguousarray(np.rot90(pixels)))
    exif = Image.Exif()
    exif[0x0112] = 6  # it is to be turned clockwise
    turned.save(tmp_path / 'a.png', exif=exif)
    np.testing.assert_allclose(
        prepare(tmp_path / 'a.png').numpy(),
        pixels.transpose(2, 0, 1) / np.float32(255),
    )


def no_classifier(folder):
    pytest.importorskip('mmpretrain')
    (folder / 'moco.py').write_text(f"""
_base_ = {str(CONFIG)!r}
model = dict(
    _delete_=True, type='MoCo', queue_len=4,
    backbone=dict(type='ResNet', depth=18),
    neck=dict(type='GlobalAveragePooling'), head=dict(
        type='ContrastiveHead', loss=dict(type='CrossEntropyLoss')))
data_preprocessor = dict(_delete_=True, type='SelfSupDataPreprocessor')
""")
    return f'mm:{folder}/moco.py'


@pytest.mark.parametrize(
    'model, counted',
    [
        pytest.param(
            lambda folder: 'torchvision:resnet34',
            '16 residual steps, 12',
            id='of torchvision',
        ),
        pytest.param(
            lambda folder: f'{folder}/some_nets.py:batches',
            '8 residual steps, 4',
            id='of a function',
        ),
        pytest.param(no_classifier, '8 residual steps, 4', id='no classifier'),
    ],
)
def test_blocks(model, counted, nets, tmp_path, capsys):
    """Of what is no classifier, those of the backbone."""
    assert call('blocks', model(tmp_path), '--size', 64, '--trace') == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f'{counted} of them recorded'
    start = next(k for k in range(len(lines)) if lines[k][:8] == 'layer1.1')
    assert 'recorded' in lines[start]
    assert lines[start + 1].strip() == (
        'takes a step together with its last norm'
    )
    assert any('layer1.1.conv1 Conv2d($' in line for line in lines[:start])


@pytest.mark.parametrize(
    'name, given, size',
    [
        pytest.param('sized', [], 48, id='of the transform'),
        pytest.param('sized', ['--size', 64], 64, id='as asked for'),
        pytest.param('net', ['--images', '{}/pictures'], 40, id='of pictures'),
        pytest.param('alone', [], 224, id='of no transform'),
    ],
)
def test_size_of_what_blocks_are_shown_of(
    name, given, size, nets, pictures, tmp_path, capsys
):
    """A ResNet's maps are of a quarter of the picture's side at first."""
    given = [str(part).format(tmp_path) for part in given]
    assert call('blocks', f'{nets}:{name}', *given) == 0
    first, *_ = capsys.readouterr().out.splitlines()
    assert first.split()[:4] == ['layer1.0', '64', 'x', str(size // 4)]


RESNET = 'stiffness', 'torchvision:resnet18', '--out', '{}/out', '--images'


@pytest.mark.parametrize(
    'args, message',
    [
        pytest.param(
            ['blocks', 'torchvision:resnet1'],
            "torchvision has no model 'resnet1'; near: ",
            id='no such model of torchvision',
        ),
        pytest.param(
            [*RESNET[:2], 'torchvision:resnet1', '--images', '{}/pictures'],
            "torchvision has no model 'resnet1'; near: ",
            id='no such second model',
        ),
        pytest.param(
            [*RESNET, '{}/pictures', '--device', 'gpu'],
            '--device gpu is not there',
            id='no such device',
        ),
        pytest.param(
            ['blocks', '{}/some_nets.py:nothing'],
            'must return a model, or it',
            id='no model',
        ),
        pytest.param(
            ['blocks', '{}/some_nets.py:typo'],
            "has no attribute 'typo'",
            id='a typo inside',
        ),
        pytest.param(
            [*RESNET, '{}/broken'],
            'x.png cannot be read',
            id='a broken picture',
        ),
        *(
            pytest.param(
                [*RESNET, f'{{}}/{dtype}'],
                'a.tif cannot be read: its values have 16 bits or are float',
                id=f'pictures of {dtype}',
            )
            for dtype in ('uint16', 'float32')
        ),
        pytest.param(
            ['stiffness', '{}/some_nets.py:net'],
            'some_nets.py.net needs pictures: give --images FOLDER',
            id='no pictures for a function',
        ),
        pytest.param(
            ['stiffness', '{}/some_nets.py:alone', '--images', '{}/pictures'],
            'is a model alone; let its FUNCTION return the model and the',
            id='a model alone',
        ),
        pytest.param(
            [*RESNET, '{}/pictures', '--weights', '{}/broken/x.png'],
            'x.png is not read',
            id='a picture as weights',
        ),
        pytest.param(
            [*RESNET, '{}/pictures', '--weights', '{}/a.safetensors'],
            'a.safetensors is of another network than torchvision.resnet18: '
            '122 tensors are missing in the file (conv1.weight, bn1.weight, '
            '…), 1 tensor is unknown to the model (a); give weights of this',
            id='weights of another model',
        ),
        pytest.param(
            [*RESNET, '{}/pictures', '--weights', '{}/fewer.safetensors'],
            'torchvision.resnet18: 2 tensors are of another shape (fc.weight '
            'is (2, 512) of torch.float32 in the file and (1000, 512) of ',
            id='weights of another head',
        ),
        pytest.param(
            [*RESNET[:2], *RESNET[1:], '{}'],
            'two models would be called torchvision.resnet18',
            id='two models of a name',
        ),
    ],
)
def test_what_is_wrong_is_one_line(
    args, message, pictures, nets, tmp_path, capsys
):
    for name in ('broken', 'flat', 'uint16', 'float32'):
        (tmp_path / name).mkdir()
        if name.endswith(('16', '32')):
            Image.fromarray(np.ones((32, 32), name)).save(
                tmp_path / name / 'a.tif'
            )
    (tmp_path / 'broken' / 'x.png').write_bytes(b'no picture')
    save_file(dict(a=torch.ones(1)), tmp_path / 'a.safetensors')
    if args[-1].endswith('fewer.safetensors'):
        weights = resnet18(num_classes=2).state_dict()
        save_file(weights, tmp_path / 'fewer.safetensors')
    assert call(*(arg.format(tmp_path) for arg in args)) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert message in last and last.startswith('mmstepnet: ')


EARLY = {
    'a bare name': (
        ['blocks', 'resnet18'],
        "'resnet18' names no model; say where it comes from, as in timm:res",
    ),
    'another prefix': (['blocks', 'tim:net'], "'tim:net' names no model; giv"),
    'no config': (['blocks', 'mm:no.py'], "there is no config file 'no.py'"),
    'no folder of transformers': (
        ['blocks', 'hf:./no'],
        "there is no folder './no'",
    ),
    'no such file': (['blocks', 'no.py:net'], "there is no file 'no.py'"),
    'no function': (
        ['blocks', 'no.py:'],
        "'no.py:' names no model; name its function, too: no.py:FUNCTION",
    ),
    'a file named as a module': (
        ['blocks', 'random.py:net'],
        "random.py hides Python's module random; rename it",
    ),
    'a file named as a package': (
        ['blocks', 'altair.py:net'],
        'altair.py hides the package altair; rename it',
    ),
    'no pictures': (
        ['stiffness', 'timm:resnet18'],
        'timm:resnet18 needs pictures: give --images FOLDER',
    ),
    'no folder': (
        ['stiffness', 'timm:resnet18', '--images', 'no'],
        'the folder of pictures no is not there',
    ),
    'no folder by its place': (
        ['gates', 'timm:resnet18', 'no'],
        'the folder of pictures no is not there',
    ),
    'two folders': (
        ['gates', 'timm:resnet18', 'empty', '--images', 'flat'],
        'two folders of pictures are given, empty and flat',
    ),
    'a file for a folder': (
        ['gates', 'timm:resnet18', '--images', 'a.txt'],
        'the folder of pictures a.txt is a file',
    ),
    'an empty folder': (
        ['stiffness', 'timm:resnet18', '--images', 'empty'],
        'empty is a folder without pictures',
    ),
    'an empty folder for labels': (
        ['gates', 'timm:resnet18', 'empty', '--labels'],
        'empty is a folder without pictures',
    ),
    'no folders of classes': (
        ['gates', 'timm:resnet18', 'flat', '--labels'],
        'flat has no folders, which are the classes',
    ),
    'labels of batches': (
        ['gates', 'net.py:net', '--labels'],
        '--labels needs a folder of pictures',
    ),
    'no weights': (
        ['gates', 'timm:resnet18', 'flat', '--weights', 'no.pth'],
        'there is no file no.pth, given by --weights',
    ),
    'no steps': (
        ['gates', 'timm:resnet18', 'flat', '--steps', 'no'],
        'there is no file no, given by --steps',
    ),
    'a file to write into': (
        ['stiffness', 'net.py:net', '--out', 'a.txt'],
        'a.txt is a file, and --out takes a folder',
    ),
    'no recording': (['report', 'no.npz'], 'there is no file no.npz'),
}
"""What is wrong whatever the model is."""


def test_what_is_wrong_is_seen_before_pytorch_is_imported(tmp_path):
    for name in ('net.py', 'random.py', 'altair.py', 'a.txt', 'flat/a.png'):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / 'empty').mkdir()
    code = (
        'import json, sys; from mmstepnet.cli import main\n'
        'for args in json.load(sys.stdin): assert main(args) == 2, args\n'
        'assert "torch" not in sys.modules'
    )
    done = subprocess.run(
        [sys.executable, '-c', code],
        cwd=tmp_path,
        input=json.dumps([args for args, _ in EARLY.values()]),
        capture_output=True,
        text=True,
        env={**os.environ, 'PYTHONPATH': str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    for (name, (_, wanted)), line in zip(
        EARLY.items(), done.stderr.splitlines(), strict=True
    ):
        assert line.startswith(f'mmstepnet: {wanted}'), name


@pytest.mark.parametrize('library', ['timm', 'torchvision'])
def test_unknown_models_have_near_names(library):
    pytest.importorskip(library)
    with pytest.raises(ValueError, match='near: .*resnet18'):
        build_model(f'{library}:resnet1')
    with pytest.raises(ValueError, match='no name is near'):
        build_model(f'{library}:0')


class ConnectError(OSError):
    """As a library of the internet has one."""


def test_no_internet_is_one_line_with_a_way_out(
    monkeypatch, pictures, tmp_path, capsys
):
    """A library tells it in its own words, of its own causes."""

    def fetch(*args, **kwargs):
        try:
            raise ConnectError('name resolution')
        except OSError as error:
            raise RuntimeError('many\nlines') from error

    monkeypatch.setattr('torchvision.models.get_model', fetch)
    assert call(*RESNET, pictures, '--pretrained') == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        'mmstepnet: torchvision:resnet18 is not fetched, because the internet '
        'is not reached; give --weights FILE, without --pretrained'
    )


def test_which_files_are_pictures(tmp_path, capsys):
    """By one rule with classes and without; each real file counts once."""
    for ending in ('GIF', 'jfif', 'jpe', 'avif', 'JPEG', 'webp', 'png'):
        (tmp_path / 'all' / 'deep').mkdir(parents=True, exist_ok=True)
        Image.new('RGB', (8, 8), 'red').save(
            tmp_path / 'all' / 'deep' / f'a.{ending}'
        )
    first, second = (Image.new('RGB', (8, 8), c) for c in ('red', 'blue'))
    first.save(
        tmp_path / 'all' / 'two.gif', save_all=True, append_images=[second]
    )
    (tmp_path / 'all' / 'b.txt').touch()
    (tmp_path / 'all' / 'README').touch()
    (tmp_path / 'all' / '.hidden').mkdir()
    for name in ('.hidden/c.png', '.d.png'):
        first.save(tmp_path / 'all' / name)
    outside = tmp_path / 'outside'
    outside.mkdir()
    first.save(outside / 'e.png')
    (tmp_path / 'all' / 'link').symlink_to(outside)
    (tmp_path / 'all' / 'again').symlink_to(outside)
    (tmp_path / 'all' / 'link.png').symlink_to(outside / 'e.png')
    (outside / 'loop').symlink_to(tmp_path / 'all')
    found = list_pictures(tmp_path / 'all', False)
    names = [str(path.relative_to(tmp_path / 'all')) for path, _ in found]
    assert names == [
        *(
            f'deep/a.{ending}'
            for ending in ('GIF', 'JPEG', 'avif', 'jfif', 'jpe', 'png', 'webp')
        ),
        'link.png',
        'two.gif',
    ]
    assert capsys.readouterr().err.endswith(
        'all: 2 other files are passed by (1 without an ending, 1 .txt)\n'
    )
    wanted = torch.tensor([1.0, 0, 0])[:, None, None]
    prepare = picture_reader(ToTensor())
    for path, _ in found:  # which all are decoded
        difference = prepare(path) - wanted
        assert difference.abs().max() < 0.1, path  # JPEG rounds
    (tmp_path / 'all' / 'again').unlink()
    (tmp_path / 'all' / 'link').unlink()
    (tmp_path / 'all' / 'named').symlink_to(outside)
    found = list_pictures(tmp_path / 'all', True)
    assert [name for _, name in found] == ['deep'] * 7 + ['named']
    assert '4 outside of the classes' in capsys.readouterr().err
    (tmp_path / 'all' / 'void').mkdir()
    (tmp_path / 'all' / 'twice').symlink_to(tmp_path / 'all' / 'deep')
    for words in 'twice has no pictures of its', 'void is a folder without':
        with pytest.raises(ValueError, match=words):
            list_pictures(tmp_path / 'all', True)
        (tmp_path / 'all' / 'twice').unlink(missing_ok=True)


def test_a_folder_without_pictures(tmp_path):
    """Other files are counted where there are some."""
    with pytest.raises(ValueError, match='is a folder without pictures$'):
        list_pictures(tmp_path, False)
    (tmp_path / 'a.txt').touch()
    with pytest.raises(ValueError, match=r'; 1 other file is .*\(1 .txt\)$'):
        list_pictures(tmp_path, False)


@pytest.mark.parametrize('labels', [False, True])
def test_pictures_by_links_to_files_without_an_ending(labels, tmp_path):
    """As in the cache of a hub, where the files lie before their names."""
    store, named = tmp_path / 'all' / 'a', tmp_path / 'all' / 'b'
    store.mkdir(parents=True)
    named.mkdir()
    Image.new('RGB', (8, 8)).save(store / '0f', 'png')
    (named / 'x.png').symlink_to(store / '0f')
    if labels:
        Image.new('RGB', (8, 8)).save(store / 'y.png')
    found = [
        str(path.relative_to(tmp_path))
        for path, _ in list_pictures(tmp_path / 'all', labels)
    ]
    assert found == [*['all/a/y.png'] * labels, 'all/b/x.png']


def test_nothing_is_fetched_unasked(monkeypatch):
    def fetch(*args, **kwargs):
        raise AssertionError('fetches')

    monkeypatch.setattr('torch.hub.load_state_dict_from_url', fetch)
    monkeypatch.setattr(
        'torchvision.models._api.load_state_dict_from_url', fetch
    )
    build_model('torchvision:lraspp_mobilenet_v3_large')


def test_files_are_named_as_shortly_as_they_differ(tmp_path):
    for names in ('best', 'last'), ('a/best', 'c/best'), ('v_0.1', 'v_0.2'):
        paths = [tmp_path / 'b' / f'{name}.pth' for name in names]
        assert list(label_networks(['torchvision:resnet18'], paths)) == [
            f'torchvision.resnet18.{name.replace("/", ".")}' for name in names
        ]
    with pytest.raises(ValueError, match='2 models need as many --weights'):
        label_networks(['a', 'b'], paths[:1])
    # What stands behind a dot of a name is none of its endings.
    paths = [tmp_path / name for name in ('v_0.1', 'v_0.2', 'c.pth.tar')]
    assert list(label_networks(['a'], paths)) == [
        'a.v_0.1',
        'a.v_0.2',
        'a.c.pth',
    ]
    # Steps are named, too; of those in a folder it is the folder.
    steps = tmp_path / 'tuned' / 'steps.safetensors'
    steps.parent.mkdir()
    for given, name in ((steps, 'steps'), (steps.parent, 'tuned')):
        assert list(label_networks(['a'], paths[:1], str(given))) == [
            f'a.v_0.1+{name}'
        ]
        assert list(label_networks(['a', 'b'], [], str(given))) == [
            f'a+{name}',
            f'b+{name}',
        ]


def commands():
    """The commands' parsers, by their names."""
    (inner,) = (
        action
        for action in build_parser()._actions
        if hasattr(action, 'add_parser')
    )
    return inner.choices


@pytest.mark.parametrize('name', ['', *commands()])
def test_help_has_an_example_and_each_default(name):
    """The example is a command that the parser takes."""
    parser = commands()[name] if name else build_parser()
    sentence, *_ = parser.description.splitlines()
    assert sentence.endswith('.')
    (example,) = re.findall(
        r'^ {4}python -m mmstepnet (.*)', parser.description, re.MULTILINE
    )
    build_parser().parse_args(example.split())
    for action in parser._actions:
        if action.option_strings and not (
            action.required or action.dest in ('help', 'version')
        ):
            assert 'Default: ' in action.help, action.dest


def test_help_needs_no_pytorch():
    code = (
        'import sys, mmstepnet.cli.arguments as a; a.build_parser()'
        '.format_help(); assert "torch" not in sys.modules; '
        'import mmstepnet; assert mmstepnet.StepNet and mmstepnet.steps'
    )
    subprocess.run([sys.executable, '-c', code], check=True)
    assert READINGS == tuple(ALL_READINGS)


def test_versions_are_those_of_the_modules(capsys):
    assert main(['env']) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f'mmstepnet {mmstepnet.__version__}, ')
    assert f'torch {torch.__version__}'.split('+')[0] in '\n'.join(lines)
    assert f'numpy {np.__version__}' in lines
    for name in ('onnx', 'onnxruntime'):
        if find_spec(name):
            assert f'{name} {import_module(name).__version__}' in lines
    assert bool(find_spec('mmseg')) == ('mmsegmentation ' in '\n'.join(lines))
    assert not any('not installed' in line for line in lines)
