"""Speed is not tested, but that what is compared is what it says."""

import json
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import propagation
from tests.programs import run_tool


@pytest.fixture
def args(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, 'argv', [
        'propagation_benchmark.py', '--tokens', '1024', '--heads', '2',
        '--head-dims', '16', '--rounds', '2', '--contestants', 'metric',
        'metric N x N', '--modes', 'train', '--settings', 'causal', '--out',
        str(tmp_path / 'result.json')
    ])
    return propagation.parse_args()


@pytest.mark.parametrize('mode', ['inference', 'train'])
@pytest.mark.parametrize('setting', ['plain', 'key padding', 'causal'])
def test_contestants_compute_what_they_say(args, mode, setting):
    steps = {
        name: propagation.Contestant(name, args, mode, setting, 64).step()
        for name in propagation.CONTESTANTS
    }
    for name, other in ((propagation.BASELINE, 'dot product'),
                        ('metric', 'metric N x N')):
        assert len(steps[name]) == (1 if mode == 'inference' else 4)
        for got, expected in zip(steps[name], steps[other]):
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(
        steps['metric'][0], steps[propagation.BASELINE][0], atol=0.1)


@pytest.mark.skipif(
    not Path('/proc/self/clear_refs').exists(), reason='memory as Linux sees')
def test_result_file(args):
    # A program, for it measures memory in fresh processes of its own.
    shown = run_tool('-m', 'benchmarks.propagation', *sys.argv[1:]).stdout
    table, = json.loads(Path(args.out).read_text())['tables']
    assert (table['mode'], table['setting']) == ('train', 'causal')
    rows = {row['contestant']: row for row in table['rows']}
    assert list(rows) == [propagation.BASELINE, 'metric', 'metric N x N']
    assert rows[propagation.BASELINE]['ratio'] == 1
    matrices = 2 * 1024**2 * 4
    for name, row in rows.items():
        assert name in shown and len(row['seconds']) == 2
        assert row['share_of_matrices'] == row['extra_bytes'] / matrices
    assert rows['metric N x N']['extra_bytes'] > matrices
    assert rows['metric']['extra_bytes'] < matrices / 2
