"""Command lines that a tool cannot take, refused in one line."""

import pytest

from tests.documents import ROOT
from tests.programs import call_tool, load_tool, run_program

CONFIG = str(ROOT / 'configs' / 'digits' / 'resnet20_stepnet_digits.py')
COMPOSE = 'dataset_converters/compose_digits.py'


@pytest.mark.parametrize('name, command', [
    ('test.py', [CONFIG, 'x.pth', '--out', 'x.txt']),
    ('analysis_tools/stiffness.py', [CONFIG, 'x.pth', '--max-samples', 0]),
    (COMPOSE, ['--train=0']), (COMPOSE, ['--val=1.5'])])
def test_wrong_arguments(name, command, capsys, tmp_path, monkeypatch):
    """The usage and the value."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        call_tool(load_tool(name), *command)
    error = capsys.readouterr().err
    assert 'usage' in error and str(command[-1]).split('=')[-1] in error
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('tool, more', [
    ('train.py', ()), ('test.py', ('x.pth', )),
    ('analysis_tools/stiffness.py', ('x.pth', ))])
def test_a_mistyped_config_is_one_line(tool, more, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((SystemExit, FileNotFoundError)) as stopped:
        call_tool(load_tool(tool), 'configs/none.py', *more)
    assert str(stopped.value) == "there is no config file 'configs/none.py'"


@pytest.mark.parametrize('command', [
    ['tools/dist_train.sh', CONFIG],
    ['tools/dist_test.sh', CONFIG, 'x.pth'],
    ['tools/slurm_train.sh', 'partition'],
    ['tools/dist_run.sh'],
    *(['-c', f'{gpus} bash tools/slurm_train.sh p j {CONFIG}']
      for gpus in ('GPUS=two', 'CPUS_PER_TASK=-1')),
])
def test_wrong_arguments_of_scripts(command):
    done = run_program('bash', *command, check=False)
    assert done.returncode == 2
    assert 'usage' in done.stderr or 'positive integer' in done.stderr
