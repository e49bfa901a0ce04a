"""The examples run, and what they write is right."""

import csv
import re
import runpy
import sys

import pytest

from tests.documents import ROOT
from tests.programs import run_tool

pytest.importorskip('torchvision')


def needs(*libraries):
    for library in libraries:
        pytest.importorskip(library, reason=f'needs {library}')


@pytest.fixture
def run_example(monkeypatch):

    def run(name, *arguments):
        monkeypatch.syspath_prepend(ROOT / 'examples')
        monkeypatch.setattr(sys, 'argv', [name, *map(str, arguments)])
        runpy.run_path(str(ROOT / 'examples' / name), run_name='__main__')

    return run


def test_captured_training_step(run_example, capsys):
    """Uncaptured, where there is no GPU: it learns what stands in it."""
    run_example('captured_training_step.py', '--steps', 20)
    losses = [
        float(line.rpartition(' ')[2])
        for line in capsys.readouterr().out.splitlines()
    ]
    assert losses[-1] < losses[0]


def test_steps_in_timm(run_example, capsys):
    """It learns to read digits, of which one in ten is right by chance."""
    needs('timm', 'sklearn')
    run_example('steps_in_timm.py', '--epochs', 1)
    first, *epochs = capsys.readouterr().out.splitlines()
    assert first == (
        'StepNet in layer1.0, layer1.1, layer2.1, layer3.1, layer4.1'
    )
    (accuracy,) = re.fullmatch(r'epoch 1: accuracy (\S+) %', *epochs).groups()
    assert float(accuracy) > 50


def printed_by(notebook):
    return ''.join(
        output.text
        for cell in notebook.cells
        if cell.cell_type == 'code'
        for output in cell.outputs
        if output.get('name') == 'stdout'
    )


def execute(name, folder, first=''):
    """Run a notebook in a copy of the checkout; ``first`` ends its imports."""
    needs('nbclient', 'ipykernel')
    import nbformat
    from nbclient import NotebookClient

    for part in ('configs', 'weights', 'mmstepnet', 'projects'):
        (folder / part).symlink_to(ROOT / part)
    (folder / 'examples').mkdir()
    notebook = nbformat.read(ROOT / 'examples' / name, 4)
    notebook.cells[1].source += first
    NotebookClient(
        notebook,
        timeout=600,
        kernel_name='python3',
        resources={'metadata': {'path': str(folder / 'examples')}},
    ).execute()
    return notebook


def test_notebook(tmp_path):
    """It says of the networks what their card says."""
    pytest.importorskip('mmpretrain')
    from safetensors.torch import load_file

    printed = printed_by(
        execute('stiffness_from_a_checkpoint.ipynb', tmp_path)
    )
    card = (ROOT / 'weights' / 'README.md').read_text('utf-8')
    files = sorted((ROOT / 'weights').glob('*.safetensors'))
    assert len(files) == 3
    for name, path in zip(('plain', 'SE', 'StepNet'), files):
        accuracy, tns, parameters = re.search(
            rf'_{name.lower()}_digits\.py\) \| (\S+) \| (\S+) \| (\S+) \|',
            card,
        ).groups()
        assert int(parameters.replace(',', '')) == sum(
            value.numel()
            for key, value in load_file(path).items()
            if key.endswith(('weight', 'bias'))
        )
        right, measured = re.search(
            rf'^{name} +(\d+) of 360 right, TNS (\S+),', printed, re.MULTILINE
        ).groups()
        # Another CPU may round an image to the other side.
        assert abs(int(right) - 3.6 * float(accuracy)) < 1.01
        assert float(measured) == pytest.approx(float(tns), abs=2e-3)
    assert len(list((tmp_path / 'work_dirs' / 'notebook').glob('*.png'))) == 6


def test_notebook_of_stiff_systems(tmp_path):
    """It runs; what it printed with all its steps is the page's table."""
    needs('rich', 'yaml')
    name = 'stiff_systems.ipynb'
    execute(
        name,
        tmp_path,
        '\nintegrators.STEPS = (40, 80)\nintegrators.TOLERANCES = (1e-3, )',
    )
    import nbformat

    found = re.findall(
        r'(?:Euler|RK4|RKF45) +(?:over )?(\d+)',
        printed_by(nbformat.read(ROOT / 'examples' / name, 4)),
    )
    page = (ROOT / 'docs' / 'stiffness.md').read_text('utf-8')
    rows = re.findall(r'^\| (?:affine system|three bodies) \|.*', page, re.M)
    assert found == re.findall(r'\d+', ''.join(rows).replace(',', ''))


def test_tns_in_lightning(run_example, tmp_path, capsys):
    """What it prints is what the callback logs."""
    needs('lightning', 'sklearn')
    run_example('tns_in_lightning.py', '--epochs', 1, '--out', tmp_path)
    printed = capsys.readouterr().out
    assert (
        'StepNet in layer1.0, layer1.1, layer1.2, layer2.1, layer2.2\n'
        in printed
    )
    accuracy, tns = map(
        float,
        re.search(r'epoch 1: accuracy (\S+) %, TNS (\S+)', printed).groups(),
    )
    assert accuracy > 30 and tns > 0
    with open(next(tmp_path.rglob('metrics.csv'))) as file:
        rows = list(csv.DictReader(file))
    (logged,) = (row for row in rows if row['tns'])
    assert float(logged['tns']) == pytest.approx(tns, abs=1e-4)
    assert float(logged['nsi']) > 0
    assert list(tmp_path.rglob('*.ckpt'))


def test_steps_in_hf_trainer(run_example, tmp_path, capsys):
    needs('transformers', 'accelerate', 'sklearn')
    run_example('steps_in_hf_trainer.py', '--epochs', 1, '--out', tmp_path)
    printed = capsys.readouterr().out
    accuracy, again = re.findall(r'accuracy (\S+) %', printed)
    assert accuracy == again and float(accuracy) > 30


def test_steps_in_torchvision_detector(run_example, capsys):
    """The loss goes down; the digits take more epochs than a test has."""
    pytest.importorskip('sklearn')
    run_example(
        'steps_in_torchvision_detector.py', '--pictures', 8, '--epochs', 2
    )
    first, *epochs = capsys.readouterr().out.splitlines()
    assert first == 'StepNet in ' + ', '.join(
        f'backbone.body.{block}'
        for block in (
            'layer1.0',
            'layer1.1',
            'layer2.1',
            'layer3.1',
            'layer4.1',
        )
    )
    losses = [float(re.search(r'loss (\S+),', line)[1]) for line in epochs]
    assert len(losses) == 2 and losses[1] < losses[0]


@pytest.mark.slow
def test_rtmdet_on_digits(tmp_path):
    """The job ends with an evaluation."""
    pytest.importorskip('mmdet.models')
    data = tmp_path / 'data'
    loops = [
        f'{loop}_dataloader.dataset.data_root={data}/'
        for loop in ('train', 'val', 'test')
    ]
    run_tool(
        'tools/dataset_converters/compose_digits.py',
        '--out',
        data,
        '--train',
        24,
        '--val',
        5,
    )
    run_tool(
        'tools/train.py',
        'examples/rtmdet_tiny_stepnet_digits.py',
        '--work-dir',
        tmp_path / 'job',
        '--cfg-options',
        *loops,
        f'val_evaluator.ann_file={data}/annotations/instances_val.json',
        'train_cfg.max_epochs=1',
        'train_cfg.val_interval=1',
        'default_hooks.checkpoint.interval=1',
    )
    (log,) = (tmp_path / 'job').glob('*/vis_data/scalars.json')
    assert '"coco/bbox_mAP"' in log.read_text()
