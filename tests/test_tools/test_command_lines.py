"""Command lines that a tool cannot take, refused in one line."""

import re

import pytest

from tests.documents import ROOT
from tests.programs import call_tool, load_tool, run_program

CONFIG = str(ROOT / 'configs' / 'digits' / 'resnet20_stepnet_digits.py')


@pytest.mark.parametrize(
    'name, command, text',
    [
        pytest.param(
            'test.py',
            [CONFIG, 'x.pth', '--out', 'x.txt'],
            "got 'x.txt'",
            id='no format',
        ),
        pytest.param(
            'analysis_tools/stiffness.py',
            [CONFIG, 'x.pth', '--max-samples', 0],
            'positive integer, got 0',
            id='no samples',
        ),
        *(
            pytest.param(
                tool,
                ['configs/none.py', *more],
                "^there is no config file 'configs/none.py'$",
                id=f'{tool}, no config',
            )
            for tool, more in (
                ('train.py', ()),
                ('test.py', ('x.pth',)),
                ('analysis_tools/stiffness.py', ('x.pth',)),
            )
        ),
    ],
)
def test_wrong_arguments(name, command, text, capsys, tmp_path, monkeypatch):
    """Nothing is written."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        call_tool(load_tool(name), *command)
    assert re.search(
        text, f'{capsys.readouterr().err}\n{stopped.value}', re.MULTILINE
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    'command',
    [
        pytest.param(
            ['tools/dist_train.sh', CONFIG], id='dist_train without GPUs'
        ),
        pytest.param(
            ['tools/dist_test.sh', CONFIG, 'x.pth'],
            id='dist_test without GPUs',
        ),
        pytest.param(
            ['tools/slurm_train.sh', 'partition'],
            id='slurm_train without a job',
        ),
        pytest.param(['tools/dist_run.sh'], id='dist_run alone'),
        *(
            pytest.param(
                ['-c', f'{gpus} bash tools/slurm_train.sh p j {CONFIG}'],
                id=gpus,
            )
            for gpus in ('GPUS=two', 'CPUS_PER_TASK=-1')
        ),
    ],
)
def test_wrong_arguments_of_scripts(command):
    done = run_program('bash', *command, check=False)
    assert done.returncode == 2
    assert 'usage' in done.stderr or 'positive integer' in done.stderr
