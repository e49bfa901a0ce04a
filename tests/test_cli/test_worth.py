"""The command ``worth``, against the library called by hand."""

import json
import sys

import numpy as np
import pytest
import torch
from PIL import Image

import mmstepnet
from mmstepnet.cli import main
from mmstepnet.cli.choices import RUNGS
from mmstepnet.trials import plan
from mmstepnet.trials.rungs import RUNGS as ALL_RUNGS
from tests.documents import ROOT
from tests.test_trials.tiny_network import net

NETS = ROOT / 'tests' / 'test_trials' / 'tiny_network.py'


@pytest.fixture(autouse=True)
def one_epoch(monkeypatch):
    """Whatever that takes."""
    monkeypatch.setattr(plan, 'MOST_EPOCHS', 1)
    monkeypatch.setattr(plan, 'FEW_EPOCHS', 0)
    yield
    sys.path[:] = [path for path in sys.path if path != str(NETS.parent)]


@pytest.fixture
def pictures(tmp_path):
    """Ten pictures of each of three classes, and two for a test of each."""
    generator = np.random.default_rng(0)
    for folder, count in (('train', 10), ('test', 5)):
        for k in range(3 * count):
            path = tmp_path / folder / 'cab'[k % 3] / f'{k:02}.png'
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = generator.integers(0, 256, (16, 16, 3), np.uint8)
            Image.fromarray(pixels).save(path)
    return tmp_path


def call(folder, *args, function='net'):
    command = ['worth', f'{NETS}:{function}', '--images', folder / 'train']
    given = '--minutes', 60, '--device', 'cpu', '--out', folder / 'out'
    return main([str(arg) for arg in (*command, *given, *args)])


def opened(folder):
    """Pictures and numbers of classes, as a user reads them."""
    for number, name in enumerate('abc'):
        for path in sorted((folder / name).iterdir()):
            pixels = np.asarray(Image.open(path)).transpose(2, 0, 1) / 255
            yield torch.tensor(pixels, dtype=torch.float32), number


def test_is_that_of_the_library(pictures, capsys):
    """Also what it prints, and that it goes on, which trains nothing."""
    rungs = 'head', 'layer-scale'
    given = '--rungs', *rungs, '--val', pictures / 'test', '--force', '--json'
    assert call(pictures, *given) == 0
    row = json.loads(capsys.readouterr().out)
    wanted = mmstepnet.compare_rungs(
        net()[0],
        opened(pictures / 'train'),
        rungs,
        val=opened(pictures / 'test'),
        out=pictures / 'by_hand',
        minutes=60,
        batch_size=16,
        force=True,
    )
    assert row['differences'] == wanted.differences
    assert row['sentence'].startswith('On these 15 pictures ')
    assert call(pictures, *given[:-1]) == 0
    out, err = capsys.readouterr()
    assert out.strip().endswith(row['sentence']) and '16/16' in err


def test_draws(pictures):
    pytest.importorskip('altair', reason='needs the figures')
    assert call(pictures, '--rungs', 'head', 'norms', '--force') == 0
    with Image.open(pictures / 'out' / 'worth.png') as image:
        assert min(image.size) > 200


@pytest.mark.parametrize(
    'function, args, said',
    [
        pytest.param('net', (), 'show only differences above', id='few'),
        pytest.param(
            'plain_net', (), 'needs a transform of pictures', id='transform'
        ),
        pytest.param(
            'headless', ('--force',), 'TinyNet has no head', id='head'
        ),
        pytest.param(
            'net',
            ('--force', '--minutes', '1e-9'),
            'give it more minutes, or fewer pictures',
            id='time',
        ),
    ],
)
def test_one_sentence(function, args, said, pictures, capsys):
    assert call(pictures, *args, function=function) == 2
    err = capsys.readouterr().err
    assert f'mmstepnet: {said}' in err or said in err.splitlines()[-1]
    assert not (pictures / 'out').exists()


def test_a_picture_in_two_classes_is_named(pictures, capsys):
    folder = pictures / 'train'
    (folder / 'b' / 'copy.png').write_bytes(
        (folder / 'a' / '01.png').read_bytes()
    )
    assert call(pictures, '--force') == 2
    said = f'{folder}/a/01.png and {folder}/b/copy.png are one picture'
    assert said in capsys.readouterr().err


def test_other_classes_to_test_on(pictures, capsys):
    (pictures / 'test' / 'a').rename(pictures / 'test' / 'd')
    assert call(pictures, '--val', pictures / 'test') == 2
    assert 'has other classes than' in capsys.readouterr().err


def test_a_rung_that_is_not_compared_is_not_kept(pictures, capsys):
    given = '--rungs', 'head', 'norms', '--force', '--keep', 'se'
    assert call(pictures, *given) == 2
    assert '--keep se is not compared' in capsys.readouterr().err


def test_its_rungs_are_those_of_the_library():
    assert RUNGS == ALL_RUNGS
