"""Command lines that a tool cannot take, refused in one line."""

import pytest

from tests.documents import ROOT
from tests.programs import call_tool, load_tool, run_program

CONFIG = str(ROOT / 'configs' / 'digits' / 'resnet20_stepnet_digits.py')
COUNTS = ['0', '-3', '1.5', 'two', '']
# Tool: what comes before, then options and values that none may have.
COMMANDS = {
    'train.py': ([CONFIG], {'--launcher': ['mpirun', '']}),
    'test.py': ([CONFIG, 'x.pth'], {'--launcher': ['gloo'],
                                    '--out': ['x.txt', 'json', '.npz']}),
    'publish_model.py': (['x.pth', 'out'], {'--hash': ['8']}),
    'analysis_tools/stiffness.py': (
        [CONFIG, 'x.pth'], {'--max-samples': COUNTS,
                            '--split': ['validation', '']}),
    'dataset_converters/compose_digits.py': (
        [], {'--train': COUNTS, '--val': COUNTS, '--seed': ['-1', 'x'],
             '--size': ['128', '0x0', '64x', 'axb', '32x128']}),
}


@pytest.mark.parametrize('name', COMMANDS)
def test_wrong_arguments(name, capsys, tmp_path, monkeypatch):
    """The usage, the option and the value: what argparse promises."""
    monkeypatch.chdir(tmp_path)
    tool = load_tool(name)
    before, options = COMMANDS[name]
    for option, values in options.items():
        for value in values:
            with pytest.raises(SystemExit) as stopped:
                call_tool(tool, *before, option, value)
            assert stopped.value.code == 2
            told = capsys.readouterr().err
            assert 'usage' in told and option.strip('-')[:5] in told
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
    ['tools/dist_train.sh', CONFIG, 'two'],
    ['tools/dist_test.sh', CONFIG, 'x.pth'],
    ['tools/slurm_train.sh', 'partition'],
    ['tools/dist_run.sh'],
    *(['-c', f'{gpus} bash tools/slurm_train.sh p j {CONFIG}']
      for gpus in ('GPUS=two', 'GPUS=0', 'CPUS_PER_TASK=-1')),
])
def test_wrong_arguments_of_scripts(command):
    done = run_program('bash', *command, check=False)
    assert done.returncode == 2
    assert 'usage' in done.stderr or 'positive integer' in done.stderr
