"""Mim does with an installed mmstepnet what the page's table says."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from importlib import metadata

import pytest

from tests.documents import ROOT
from tests.programs import few

MIMS = ('onedl-mim', 'openmim')
HERE = next(
    (
        mim
        for mim in MIMS
        for found in metadata.distributions()
        if found.metadata['Name'] == mim
    ),
    None,
)
CONFIG = 'resnet20_stepnet_digits'
SMALL = ('--cfg-options', 'train_cfg.max_epochs=1', *few(64, 10))
SOURCES = (
    'mmstepnet',
    'configs',
    'tools',
    'requirements',
    'setup.py',
    'pyproject.toml',
    'MANIFEST.in',
    'model-index.yml',
    'README.md',
)
FOLDER_FOR_PACKAGE = (
    r"dist-info/.*is not found, please upgrade|can't open file .*dist-info|"
    'can not find the config file in codebase'
)
"""What mim says where it takes `.dist-info` for the package."""


def documented(install):
    """Cells of the column of this mim and a way to install, by command."""
    page = (ROOT / 'docs' / 'install_and_versions.md').read_text('utf-8')
    rows = [
        [cell.strip(' `') for cell in line.split('|')[1:-1]]
        for line in page.split('## What mim can do')[1].splitlines()
        if line.startswith('| `mim ') or f'| {HERE},' in line
    ]
    column = rows[0].index(f'{HERE}, `{install}')
    return {row[0]: row[column] for row in rows[1:]}


def make_environment(folder):
    """This environment with an mmstepnet of its own over it; calls mim."""
    sources, work, venv = (
        folder / name for name in ('sources', 'work', 'venv')
    )
    work.mkdir()  # nothing to import from there
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        sources.mkdir(exist_ok=True)
        copy(ROOT / name, sources / name)
    shutil.rmtree(sources / 'mmstepnet' / '.mim', ignore_errors=True)
    subprocess.run(
        [sys.executable, '-m', 'venv', '--without-pip', venv], check=True
    )
    packages = next(venv.glob('lib/python*/site-packages'))
    (packages / 'hosts.pth').write_text(sysconfig.get_path('purelib'))

    def mim(*arguments):
        environ = {
            key: value
            for key, value in os.environ.items()
            if key not in ('PYTHONPATH', 'PYTHONHOME')
        }
        return subprocess.run(
            [str(venv / 'bin/python'), '-m', 'mim', *map(str, arguments)],
            cwd=work,
            env={'OMP_NUM_THREADS': '1', **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=900,
        )

    return sources, work, mim


def verdict(done, evidence):
    """How a cell of the table puts what a command did."""
    if done.returncode == 0 and evidence:
        return 'works'
    assert re.search(FOLDER_FOR_PACKAGE, done.stdout), done.stdout[-4000:]
    return 'no: takes `.dist-info` for the package'


@pytest.mark.skipif(HERE is None, reason='no mim here')
@pytest.mark.parametrize(
    'install',
    [
        pytest.param('mim install -e .', marks=pytest.mark.slow),
        'mim install .',
    ],
)
def test_mim_does_what_the_page_says(install, tmp_path):
    sources, work, mim = make_environment(tmp_path)
    done = mim(
        *install.split()[1:-1], sources, '--no-deps', '--no-build-isolation'
    )
    assert done.returncode == 0, done.stdout[-4000:]
    config = sources / 'configs' / 'digits' / f'{CONFIG}.py'
    checkpoint = work / 'train' / 'epoch_1.pth'
    done = mim('search', 'mmstepnet', '--config', CONFIG)
    seen = {
        'mim search mmstepnet --config NAME': verdict(
            done, 'StepNet' in done.stdout
        )
    }
    done = mim(
        'train',
        'mmstepnet',
        config,
        '--gpus',
        '0',
        '--work-dir',
        work / 'train',
        *SMALL,
    )
    seen['mim train mmstepnet PATH'] = verdict(done, checkpoint.is_file())
    for shown, name in (('PATH', config), ('NAME.py', f'{CONFIG}.py')):
        done = mim(
            'test',
            'mmstepnet',
            name,
            '--checkpoint',
            checkpoint,
            '--work-dir',
            work / 'test',
            *SMALL,
        )
        seen[f'mim test mmstepnet {shown} --checkpoint CKPT'] = verdict(
            done, 'accuracy/top1' in done.stdout
        )
    assert documented(install) == seen
