"""tools/test.py opens its checkpoint once, of either kind."""

import json

import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from safetensors.torch import save_file

from tests.documents import ROOT
from tests.programs import IN_PROCESS, run_tool

CONFIG = 'configs/digits/resnet20_stepnet_digits.py'

PROGRAM = """
import runpy, sys
opened = []

def note(event, args):
    if event == 'open' and str(args[0]).endswith(('.pth', '.safetensors')):
        opened.append(args[0])

sys.addaudithook(note)
sys.argv = ['tools/test.py', *sys.argv[1:]]
runpy.run_path('tools/test.py', run_name='__main__')
print('opened', len(opened))
"""


def evaluate(checkpoint, folder):
    out = folder / 'metrics.json'
    result = run_tool(
        '-c', PROGRAM, CONFIG, checkpoint, '--work-dir', folder, '--out', out,
        '--cfg-options', 'test_dataloader.dataset.indices=50', *IN_PROCESS)
    return json.loads(out.read_text()), result.stdout.split()[-1]


def test_one_read(tmp_path):
    cfg = Config.fromfile(ROOT / CONFIG)
    init_default_scope(cfg.default_scope)
    torch.manual_seed(0)
    weights = MODELS.build(cfg.model).state_dict()
    torch.save(dict(state_dict=weights, meta={}), tmp_path / 'net.pth')
    save_file(weights, tmp_path / 'net.safetensors')
    metrics, opened = evaluate(tmp_path / 'net.pth', tmp_path / 'a')
    assert opened == '1'
    # The library of safetensors opens files out of Python's sight.
    same, opened = evaluate(tmp_path / 'net.safetensors', tmp_path / 'b')
    assert opened == '0'
    assert metrics == same and metrics
