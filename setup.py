"""Packaging, with the ``.mim`` folder that OpenMMLab's ``mim`` looks into."""

import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py
from setuptools.command.develop import develop

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


def fill_mim_folder(mim: Path, link: bool) -> None:
    """Put configs, tools and the model index where ``mim`` finds them."""
    shutil.rmtree(mim, ignore_errors=True)
    mim.mkdir(parents=True)
    for name in ('configs', 'tools', 'model-index.yml'):
        source, target = ROOT / name, mim / name
        if link:
            target.symlink_to(source, target_is_directory=source.is_dir())
        elif source.is_dir():
            shutil.copytree(
                source, target,
                ignore=shutil.ignore_patterns('__pycache__'))
        else:
            shutil.copy(source, target)


class BuildPy(build_py):
    """A wheel holds copies."""

    def run(self) -> None:
        super().run()
        if not getattr(self, 'editable_mode', False):
            fill_mim_folder(
                Path(self.build_lib) / 'mmstepnet' / '.mim', link=False)


class Develop(develop):
    """The old editable install, of upstream's mim, holds links.

    The newer one needs none: onedl-mim looks into the checkout.
    """

    def run(self) -> None:
        fill_mim_folder(ROOT / 'mmstepnet' / '.mim', link=True)
        super().run()


if __name__ == '__main__':
    setup(
        name='mmstepnet',
        version=version(),
        description='StepNet backbones, stiffness analytics and '
        'metric-attention for OpenMMLab',
        long_description=(ROOT / 'README.md').read_text(),
        long_description_content_type='text/markdown',
        license='Apache-2.0',
        packages=find_packages(include=('mmstepnet', 'mmstepnet.*')),
        package_data={'mmstepnet': ['figures/*.jinja']},
        cmdclass=dict(build_py=BuildPy, develop=Develop),
        python_requires='>=3.10',
        install_requires=requirements('runtime'),
        extras_require=dict(
            onedl=hosts('onedl'),
            openmmlab=hosts('openmmlab'),
            tests=requirements('tests')),
        zip_safe=False)
