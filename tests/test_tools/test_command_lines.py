"""What the tools say of themselves, and what they refuse in one line."""

import re
from argparse import ArgumentParser

import pytest

from tests.checkpoints import restored_mmengine  # noqa: F401, a fixture
from tests.documents import ROOT
from tests.programs import (
    IN_PROCESS,
    call_tool,
    load_tool,
    run_program,
    run_tool,
)

CONFIG = str(ROOT / 'configs' / 'digits' / 'resnet20_stepnet_digits.py')
TOOLS = (
    'train.py',
    'test.py',
    'export_onnx.py',
    'publish_model.py',
    'analysis_tools/stiffness.py',
    'dataset_converters/compose_digits.py',
)


@pytest.mark.parametrize('name', TOOLS)
def test_help_has_an_example_and_each_default(name, monkeypatch):
    """A sentence, a command as it is typed, and what happens without."""

    def show(parser):
        raise StopIteration(parser)

    monkeypatch.setattr(ArgumentParser, 'parse_args', show)
    with pytest.raises(StopIteration) as shown:
        load_tool(name).parse_args()
    parser = shown.value.value
    sentence, blank, *rest = parser.description.splitlines()
    assert sentence.endswith('.') and not blank
    assert rest[0].startswith(f'    python tools/{name}')
    for action in parser._actions:
        if action.option_strings and action.dest != 'help':
            assert 'Default: ' in action.help, action.dest


def test_help_imports_nothing_heavy():
    """Neither PyTorch nor a host: it is there at once."""
    code = f"""
import runpy, sys
for name in {TOOLS}:
    sys.argv = [name, '--help']
    try:
        runpy.run_path('tools/' + name, run_name='__main__')
    except SystemExit as end:
        assert end.code == 0
assert not {{'torch', 'numpy', 'mmengine', 'cv2'}} & {{*sys.modules}}
"""
    run_tool('-c', code)


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
        *(
            pytest.param(
                tool,
                [CONFIG, 'none.pth', *more],
                "^there is no checkpoint 'none.pth'$",
                id=f'{tool}, no checkpoint',
            )
            for tool, more in (
                ('test.py', ()),
                ('export_onnx.py', ('x.onnx',)),
                ('analysis_tools/stiffness.py', ()),
            )
        ),
        pytest.param(
            'train.py',
            [CONFIG, '--resume', 'none.pth'],
            "^there is no checkpoint 'none.pth'$",
            id='nothing to resume',
        ),
        pytest.param(
            'train.py',
            [CONFIG, '--cfg-options', 'train_cfg.max_epochs'],
            "must be KEY=VALUE, got 'train_cfg.max_epochs'",
            id='no value',
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


DATA = 'train_dataloader.dataset'
FOLDERS = f"""
_base_ = [{str(ROOT / 'configs/imagenet/resnet50_stepnet_imagenet.py')!r}]
data = dict(dataset=dict(data_root='there', split=''))
train_dataloader = val_dataloader = test_dataloader = data
"""


@pytest.mark.parametrize(
    'base, options, text',
    [
        pytest.param(
            'none.py', [], 'small.py: .*none.py', id='no base config'
        ),
        pytest.param(
            CONFIG,
            ['model.backbone.attention.type=StepNett'],
            r"model.backbone: attention 'StepNett' is unknown",
            id='unknown attention',
        ),
        pytest.param(
            CONFIG,
            ['load_from=none.pth'],
            "there is no checkpoint 'none.pth', which load_from names",
            id='nothing to start from',
        ),
        pytest.param(
            CONFIG,
            [
                'model.backbone.init_cfg.type=Pretrained',
                'model.backbone.init_cfg.checkpoint=none.pth',
            ],
            "no checkpoint 'none.pth', which model.backbone.init_cfg.checkpo",
            id='no pretrained weights',
        ),
        pytest.param(
            None,
            [f'{DATA}.data_root=none'],
            f"'none' is not there, which {DATA}.data_root names",
            id='no folder of data',
        ),
        pytest.param(
            None,
            [f'{DATA}.ann_file=none.txt'],
            f"'there/none.txt' is not there, which {DATA}.ann_file names",
            id='no annotations',
        ),
        pytest.param(
            None,
            [f'{DATA}.data_prefix=none'],
            f"'there/none' is not there, which {DATA}.data_prefix names",
            id='no folder of pictures',
        ),
    ],
)
@pytest.mark.usefixtures('restored_mmengine')
def test_what_the_config_shows(base, options, text, tmp_path, monkeypatch):
    """It is refused before the host is imported and anything is written."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        'mmstepnet.jobs.job.RUNNERS.build', lambda cfg: pytest.fail('built')
    )
    (tmp_path / 'there').mkdir()
    (tmp_path / 'small.py').write_text(
        f'_base_ = [{base!r}]' if base else FOLDERS
    )
    with pytest.raises(SystemExit, match=text):
        call_tool(
            load_tool('train.py'),
            'small.py',
            *(['--cfg-options', *options] if options else []),
        )
    assert {path.name for path in tmp_path.iterdir()} == {'there', 'small.py'}


def test_the_host_is_not_asked_for_what_the_config_shows(tmp_path):
    code = f"""
import sys
from tools import train
sys.argv = ['train.py', {CONFIG!r}, '--work-dir', {str(tmp_path)!r},
            '--cfg-options', 'load_from=none.pth']
try:
    train.main()
except SystemExit as end:
    assert 'none.pth' in end.code
assert 'mmpretrain' not in sys.modules
"""
    run_tool('-c', code)


@pytest.mark.usefixtures('restored_mmengine')
def test_a_host_refuses_in_one_line_too(tmp_path):
    """The frames, which somebody may want, are in the log."""
    with pytest.raises(SystemExit) as stopped:
        call_tool(
            load_tool('train.py'),
            CONFIG,
            '--work-dir',
            tmp_path,
            '--cfg-options',
            *IN_PROCESS,
            'model.head.type=NoHead',
        )
    line = stopped.value.code
    assert line.startswith('NoHead is not in the ') and '\n' not in line
    (log,) = tmp_path.glob('*/*.log')
    frames = log.read_text()
    assert line in frames and 'Traceback (most recent call last)' in frames


@pytest.mark.usefixtures('restored_mmengine')
def test_what_goes_wrong_in_the_training_has_its_frames(tmp_path, monkeypatch):
    """There it is no refusal, but a fault that somebody must find."""

    def fails(self, *args):
        raise ValueError('in the first batch')

    monkeypatch.setattr('mmengine.runner.EpochBasedTrainLoop.run_iter', fails)
    with pytest.raises(ValueError, match='in the first batch'):
        call_tool(
            load_tool('train.py'),
            CONFIG,
            '--work-dir',
            tmp_path,
            '--cfg-options',
            *IN_PROCESS,
        )


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
