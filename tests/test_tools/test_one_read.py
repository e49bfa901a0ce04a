"""tools/test.py opens its checkpoint once, of either kind."""

import builtins
import json

import pytest
from safetensors.torch import save_file

from tests.checkpoints import save_model
from tests.documents import ROOT
from tests.programs import IN_PROCESS, call_tool, load_tool

CONFIG = ROOT / 'configs/digits/resnet20_stepnet_digits.py'


@pytest.fixture
def opened(monkeypatch):
    """Names of all files that are opened."""
    names = []

    def note(file, *args, **kwargs):
        names.append(str(file))
        return builtin(file, *args, **kwargs)

    builtin = builtins.open
    monkeypatch.setattr(builtins, 'open', note)
    return names


def evaluate(checkpoint, folder):
    out = folder / 'metrics.json'
    call_tool(
        load_tool('test.py'), CONFIG, checkpoint, '--work-dir', folder,
        '--out', out, '--cfg-options', 'test_dataloader.dataset.indices=50',
        *IN_PROCESS)
    return json.loads(out.read_text())


def test_one_read(tmp_path, opened):
    model = save_model(tmp_path / 'net.pth', CONFIG)
    save_file(model.state_dict(), tmp_path / 'net.safetensors')
    opened.clear()
    metrics = evaluate(tmp_path / 'net.pth', tmp_path / 'a')
    assert opened.count(str(tmp_path / 'net.pth')) == 1
    # The library of safetensors opens files out of Python's sight.
    same = evaluate(tmp_path / 'net.safetensors', tmp_path / 'b')
    assert str(tmp_path / 'net.safetensors') not in opened
    assert metrics == same and metrics
