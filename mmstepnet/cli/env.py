"""What this package runs on: ``python -m mmstepnet env``.

Every report of a problem should have its output.
"""

import os
import platform
import shutil
import subprocess
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path

import torch

from mmstepnet.version import __version__

DISTRIBUTIONS = (
    'numpy', 'scipy', 'torchvision', 'triton', 'timm', 'transformers',
    'scikit-learn', 'safetensors', 'matplotlib', 'plotly', 'jinja2',
    'opencv-python', 'setuptools')
HOSTS = {
    'onedl': ('onedl-mmengine', 'onedl-mmcv', 'onedl-mmpretrain',
              'onedl-mmdetection', 'onedl-mmsegmentation', 'onedl-mim'),
    'openmmlab': ('mmengine', 'mmcv', 'mmcv-lite', 'mmpretrain', 'mmdet',
                  'mmsegmentation', 'openmim'),
}
"""Distributions of either stack of OpenMMLab."""

MISSING = 'not installed'


def collect_environment() -> dict[str, str]:
    """Versions of everything that decides how this package behaves.

    Returns:
        dict[str, str]: What is asked for and what was found, in the order in
        which it is printed. What is not installed is said to be so; nothing
        is imported of it.
    """
    found = {
        'mmstepnet': f'{__version__}, {Path(__file__).parent}',
        'system': f'{platform.platform()}, {os.cpu_count()} CPUs',
        'Python': f'{platform.python_version()}, '
                  f'{platform.python_implementation()}',
        'torch': f'{torch.__version__}, {torch.get_num_threads()} threads',
        'CUDA of torch': str(torch.version.cuda or torch.version.hip),
        'GPU': describe_gpus(),
    }
    found.update((name, version(name)) for name in DISTRIBUTIONS)
    for stack, names in HOSTS.items():
        installed = [f'{name} {version(name)}' for name in names
                     if version(name) != MISSING]
        found[f'stack {stack}'] = ', '.join(installed) or MISSING
    found['mmcv ops'] = try_import('mmcv.ops')
    found['C++ compiler'] = describe_compiler()
    return found


def version(distribution: str) -> str:
    """Installed version of a distribution."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return MISSING


def describe_gpus() -> str:
    """Names and compute capabilities of the GPUs that torch can use."""
    if not torch.cuda.is_available():
        return 'none that torch can use'
    return ', '.join(
        '{} (compute capability {}.{})'.format(
            torch.cuda.get_device_name(i),
            *torch.cuda.get_device_capability(i))
        for i in range(torch.cuda.device_count()))


def try_import(module: str) -> str:
    """Whether a module of an installed package can be imported."""
    if find_spec(module.partition('.')[0]) is None:
        return MISSING
    try:
        import_module(module)
    except Exception as error:  # whatever a broken build raises is told
        return f'{type(error).__name__}: {error}'
    return 'work'


def describe_compiler() -> str:
    """First line of what the C++ compiler says of itself."""
    name = os.environ.get('CXX', 'g++')
    path = shutil.which(name)
    if path is None:
        return f'no {name}'
    done = subprocess.run([path, '--version'], capture_output=True, text=True)
    return (done.stdout or done.stderr).partition('\n')[0]


def main() -> None:
    """Print it, one line each."""
    found = collect_environment()
    width = max(map(len, found))
    for name, value in found.items():
        print(f'{name:{width}}  {value}')
