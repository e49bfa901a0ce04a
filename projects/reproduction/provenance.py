"""Where a result comes from."""

import os
import platform
import shutil
import subprocess
from pathlib import Path

import torch

from mmstepnet.version import __version__

CODE = ('mmstepnet', 'configs', 'tools', ':(glob)projects/**/*.py')


def provenance(root: Path) -> dict[str, str | None]:
    """What a result comes from, besides its config and seed.

    Args:
        root (Path): The checkout.

    Returns:
        dict: ``machine``, ``torch``, ``mmstepnet`` and ``commit``, the last
        None where ``root`` is no repository, and with ``-dirty`` where code
        or configs differ from it.
    """
    cuda = torch.cuda.is_available()
    return {
        'machine': (torch.cuda.get_device_name() if cuda else
                    f'{platform.machine()} with '
                    f'{torch.backends.cpu.get_cpu_capability()}, '
                    f'{os.cpu_count()} CPUs'),
        'torch': torch.__version__,
        'mmstepnet': __version__,
        'commit': _commit(root),
    }


def _commit(root: Path) -> str | None:
    def git(*args: str) -> str:
        return subprocess.run(['git', '-C', str(root), *args],
                              capture_output=True, text=True,
                              check=False).stdout.strip()
    if shutil.which('git') is None:
        return None
    # A copy inside somebody's repository is none of its commits.
    if git('rev-parse', '--show-toplevel') != str(root.resolve()):
        return None
    changed = git('status', '--porcelain', '--', *CODE)
    return git('rev-parse', 'HEAD') + ('-dirty' if changed else '')
