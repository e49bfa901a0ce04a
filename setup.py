"""The ``.mim`` folder, which OpenMMLab's ``mim`` looks into."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.develop import develop

ROOT = Path(__file__).resolve().parent
OF_A_CHECKOUT = 'quickstart*', 'run_tests.sh', 'setup_env.sh', 'stack.sh'
"""Tools that set a checkout up and are of no use without one."""


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
                source, target, ignore=shutil.ignore_patterns(
                    '__pycache__', *OF_A_CHECKOUT))
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


setup(cmdclass=dict(build_py=BuildPy, develop=Develop))
