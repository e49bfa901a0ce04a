"""What pyproject.toml cannot say: links, the license, the ``.mim`` folder.

OpenMMLab's ``mim`` looks into that folder.
"""

import re
import shutil
from pathlib import Path

import setuptools
from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.develop import develop

ROOT = Path(__file__).resolve().parent
REPOSITORY = ''
"""Where the source stands, such as 'https://HOST/OWNER/mmstepnet'; whoever
publishes fills it in. A package index shows the README's links by it."""

VERSION = re.search(
    r"'(.+)'", (ROOT / 'mmstepnet' / 'version.py').read_text('utf-8')
)[1]
OF_A_CHECKOUT = 'quickstart*', 'run_tests.sh', 'setup_env.sh', 'stack.sh'
"""Tools that set a checkout up and are of no use without one."""


def readme(repository: str) -> str:
    """The README with absolute links; without a repository, their texts."""

    def lead(link: re.Match) -> str:
        picture, text, address = link.groups()
        if '://' in address or address.startswith('#'):
            return link[0]
        if not repository:
            return text
        kind = 'raw' if picture else 'blob'
        return f'{picture}[{text}]({repository}/{kind}/v{VERSION}/{address})'

    return re.sub(
        r'(!?)\[([^]]*)\]\(([^)\s]+)\)',
        lead,
        (ROOT / 'README.md').read_text('utf-8'),
    )


def urls(repository: str) -> dict[str, str]:
    """Links that a package index shows beside the README."""
    if not repository:
        return {}
    return {
        'Source': repository,
        'Issues': f'{repository}/issues',
        'Changelog': f'{repository}/blob/v{VERSION}/CHANGELOG.md',
    }


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
                source,
                target,
                ignore=shutil.ignore_patterns('__pycache__', *OF_A_CHECKOUT),
            )
        else:
            shutil.copy(source, target)


class BuildPy(build_py):
    """A wheel holds copies."""

    def run(self) -> None:
        super().run()
        if not getattr(self, 'editable_mode', False):
            fill_mim_folder(
                Path(self.build_lib) / 'mmstepnet' / '.mim', link=False
            )


class Develop(develop):
    """The old editable install, of upstream's mim, holds links.

    The newer one needs none: onedl-mim looks into the checkout.
    """

    def run(self) -> None:
        fill_mim_folder(ROOT / 'mmstepnet' / '.mim', link=True)
        super().run()


if __name__ == '__main__':
    # Upstream's mim pins a setuptools that knows no license expressions.
    modern = int(setuptools.__version__.partition('.')[0]) >= 77
    setup(
        cmdclass=dict(build_py=BuildPy, develop=Develop),
        long_description=readme(REPOSITORY),
        long_description_content_type='text/markdown',
        project_urls=urls(REPOSITORY),
        **{'license_expression' if modern else 'license': 'Apache-2.0'},
    )
