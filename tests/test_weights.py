"""The networks that come with the repository are what their card says."""

import re

import pytest
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope

from mmstepnet.jobs.checkpoint import load_weights, read_checkpoint
from tests.documents import ROOT
from tests.programs import IN_PROCESS
from tests.test_tools.test_stiffness_tools import call

WEIGHTS = ROOT / 'weights'
ONE_IMAGE = 100 / 360
CARD = dict(re.findall(
    r'^\| \[(\w+)\]\(\w+\.safetensors\) \|.*?\| (.*) \|$',
    (WEIGHTS / 'README.md').read_text('utf-8'), re.MULTILINE))


def test_each_has_a_card():
    assert sorted(CARD) == sorted(
        path.stem for path in WEIGHTS.glob('*.safetensors'))


@pytest.mark.parametrize('name', CARD)
def test_card(name, tmp_path, capsys):
    accuracy, tns, parameters = CARD[name].split(' | ')
    config = ROOT / 'configs' / 'digits' / f'{name}.py'
    path = str(WEIGHTS / f'{name}.safetensors')

    cfg = Config.fromfile(config)
    init_default_scope(cfg.default_scope)
    model = MODELS.build(cfg.model)
    load_weights(model, read_checkpoint(path), path)
    assert sum(p.numel() for p in model.parameters()) == int(
        parameters.replace(',', ''))

    call('stiffness', config, path, '--out', tmp_path,
         '--device', 'cpu', '--cfg-options', *IN_PROCESS)
    told = dict(re.findall(r'^ *(\S.*)  (\S+)$', capsys.readouterr().out,
                           re.MULTILINE))
    # Another CPU may round an image to the other side.
    assert float(told['accuracy/top1']) == pytest.approx(
        float(accuracy), abs=1.01 * ONE_IMAGE)
    assert float(told['adaptive, stage']) == pytest.approx(
        float(tns), abs=2e-3)
