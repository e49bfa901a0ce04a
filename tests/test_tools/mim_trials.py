"""What mim can do with an installed mmstepnet, tried, and a table of it.

``python -m tests.test_tools.mim_trials`` tries the stack it runs on, writes
down what it saw and renews the table of docs/install_and_versions.md.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from importlib import metadata
from pathlib import Path

from tests.documents import ROOT

RECORD = Path(__file__).with_name('mim_trials.json')
PAGE = ROOT / 'docs' / 'install_and_versions.md'

MIMS = {'onedl': 'onedl-mim', 'openmmlab': 'openmim'}
INSTALLS = ('mim install -e .', 'mim install .')
COMMANDS = ('mim search mmstepnet --config NAME', 'mim train mmstepnet PATH',
            'mim test mmstepnet PATH --checkpoint CKPT',
            'mim test mmstepnet NAME.py --checkpoint CKPT')
# What mim says where it fails, and what that is.
FAILURES = {
    r'dist-info/.*is not found, please upgrade':
    'no: takes `.dist-info` for the package',
    r"can't open file .*dist-info":
    'no: takes `.dist-info` for the package',
    r'can not find the config file in codebase':
    'no: takes `.dist-info` for the package',
}
BEGIN, END = '<!-- mim_trials -->\n', '<!-- /mim_trials -->\n'

CONFIG = 'resnet20_stepnet_digits'
SMALL = ('--cfg-options', 'train_cfg.max_epochs=1',
         'train_dataloader.dataset.indices=64',
         'val_dataloader.dataset.indices=10',
         'test_dataloader.dataset.indices=10',
         'train_dataloader.num_workers=0',
         'train_dataloader.persistent_workers=False',
         'default_hooks.checkpoint.interval=1')
SOURCES = ('mmstepnet', 'configs', 'tools', 'requirements', 'setup.py',
           'pyproject.toml', 'MANIFEST.in', 'model-index.yml', 'README.md')


def stack() -> str | None:
    """The stack whose mim this environment has."""
    for name, distribution in MIMS.items():
        try:
            metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
        return name
    return None


class Environment:
    """This environment with an mmstepnet of its own over it."""

    def __init__(self, folder: Path) -> None:
        self.sources = folder / 'sources'
        self.work = folder / 'work'  # nothing to import from there
        self.work.mkdir(parents=True)
        for name in SOURCES:
            source, target = ROOT / name, self.sources / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns(
                    '__pycache__', '.mim'))
            else:
                target.parent.mkdir(exist_ok=True)
                shutil.copy(source, target)
        venv = folder / 'venv'
        subprocess.run([sys.executable, '-m', 'venv', '--without-pip', venv],
                       check=True)
        self.python = venv / 'bin' / 'python'
        packages = next(venv.glob('lib/python*/site-packages'))
        (packages / 'hosts.pth').write_text(sysconfig.get_path('purelib'))

    def mim(self, *arguments: str | Path) -> subprocess.CompletedProcess:
        environ = {
            key: value for key, value in os.environ.items()
            if key not in ('PYTHONPATH', 'PYTHONHOME')
        }
        return subprocess.run(
            [str(self.python), '-m', 'mim', *map(str, arguments)],
            cwd=self.work, env=dict(environ, OMP_NUM_THREADS='1'),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=900)

    def install(self, install: str) -> None:
        """As ``mim install`` does in the checkout; hosts are there."""
        arguments = [*install.split()[1:-1], self.sources]
        done = self.mim(*arguments, '--no-deps', '--no-build-isolation')
        assert done.returncode == 0, done.stdout[-4000:]


def verdict(done: subprocess.CompletedProcess, evidence: bool) -> str:
    """How a cell of the table puts what a command did."""
    if done.returncode == 0 and evidence:
        return 'works'
    for pattern, reason in FAILURES.items():
        if re.search(pattern, done.stdout):
            return reason
    raise AssertionError(f'{done.args} ended with {done.returncode}: '
                         f'{done.stdout[-4000:]}')


def try_install(folder: Path, install: str) -> dict[str, str]:
    """What every command does after one way of installing."""
    env = Environment(folder)
    env.install(install)
    config = env.sources / 'configs' / 'digits' / f'{CONFIG}.py'
    search, train, test, by_name = COMMANDS
    seen = {}
    done = env.mim('search', 'mmstepnet', '--config', CONFIG)
    seen[search] = verdict(done, 'StepNet' in done.stdout)
    done = env.mim('train', 'mmstepnet', config, '--gpus', '0', '--work-dir',
                   env.work / 'train', *SMALL)
    checkpoint = env.work / 'train' / 'epoch_1.pth'
    seen[train] = verdict(done, checkpoint.is_file())
    for command, name in ((test, config), (by_name, f'{CONFIG}.py')):
        done = env.mim('test', 'mmstepnet', name, '--checkpoint', checkpoint,
                       '--work-dir', env.work / 'test', *SMALL)
        seen[command] = verdict(done, 'accuracy/top1' in done.stdout)
    return seen


def table(record: dict) -> str:
    """The page's table of a record of every stack."""
    columns = [(name, install) for name in MIMS for install in INSTALLS]
    rows = [
        ['', *(f'{MIMS[name]}, `{install}`' for name, install in columns)],
        ['---'] * (1 + len(columns)),
        *([f'`{command}`',
           *(record[name][install][command] for name, install in columns)]
          for command in COMMANDS),
    ]
    return ''.join(f'| {" | ".join(row)} |\n' for row in rows)


def renew_page(record: dict) -> None:
    before, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(before + BEGIN + table(record) + END + rest.split(END)[1])


def main() -> None:
    record = json.loads(RECORD.read_text())
    with tempfile.TemporaryDirectory() as folder:
        record[stack()] = {
            install: try_install(Path(folder) / str(index), install)
            for index, install in enumerate(INSTALLS)
        }
    RECORD.write_text(json.dumps(record, indent=2, sort_keys=True) + '\n')
    renew_page(record)


if __name__ == '__main__':
    main()
