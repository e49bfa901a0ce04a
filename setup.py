"""Packaging, with the ``.mim`` folder that OpenMMLab's ``mim`` looks into."""

import shutil
import sys
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).resolve().parent


def requirements(name: str) -> list[str]:
    """Lines of ``requirements/NAME.txt`` that name a distribution."""
    lines = (ROOT / 'requirements' / f'{name}.txt').read_text().splitlines()
    return [line for line in lines if line and not line.startswith('#')]


def hosts(name: str) -> list[str]:
    """The OpenMMLab distributions of one stack; torch is the user's choice."""
    return [
        line for line in requirements(name)
        if line.startswith(('onedl-', 'mm', 'openmim'))
    ]


def version() -> str:
    scope = {}
    exec((ROOT / 'mmstepnet' / 'version.py').read_text(), scope)
    return scope['__version__']


def make_mim_folder() -> None:
    """Put configs, tools and the model index where ``mim`` finds them.

    Links in an editable install, so that edits count; copies in a wheel.
    """
    editable = {'develop', 'editable_wheel'} & set(sys.argv)
    if not editable and not {'bdist_wheel', 'sdist', 'install'} & set(
            sys.argv):
        return
    mim = ROOT / 'mmstepnet' / '.mim'
    shutil.rmtree(mim, ignore_errors=True)
    mim.mkdir()
    for name in ('configs', 'tools', 'model-index.yml'):
        source, target = ROOT / name, mim / name
        if editable:
            target.symlink_to(source, target_is_directory=source.is_dir())
        elif source.is_dir():
            shutil.copytree(
                source, target,
                ignore=shutil.ignore_patterns('__pycache__'))
        else:
            shutil.copy(source, target)


if __name__ == '__main__':
    make_mim_folder()
    setup(
        name='mmstepnet',
        version=version(),
        description='StepNet backbones, stiffness analytics and '
        'metric-attention for OpenMMLab',
        long_description=(ROOT / 'README.md').read_text(),
        long_description_content_type='text/markdown',
        license='Apache-2.0',
        packages=find_packages(include=('mmstepnet', 'mmstepnet.*')),
        package_data={
            'mmstepnet': ['.mim/**/*', '.mim/*', 'visualization/*.jinja']
        },
        python_requires='>=3.10',
        install_requires=requirements('runtime'),
        extras_require=dict(
            onedl=hosts('onedl'),
            openmmlab=hosts('openmmlab'),
            tests=requirements('tests')),
        zip_safe=False)
