"""Pages that stand beside their programs, taken into the site.

Results, READMEs of projects and configs and their pictures keep their places,
so that links between them hold here and in the checkout. A link to what is no
page, such as a program, becomes its text. The page of commands is written by
the programs.
"""

import re
import subprocess
import sys
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
BESIDE = (
    'CONTRIBUTING.md',
    'CHANGELOG.md',
    'configs/*/README.md',
    'examples/README.md',
    'weights/README.md',
    'projects/**/*.md',
    'projects/**/*.png',
    'projects/**/*.tsv',
)
MOVED = {
    'export.md': 'save_and_load.md#export-to-onnx',
    'families.md': 'any_network.md#what-was-tried',
    'gpus_and_clusters.md': 'other_projects.md#gpus-and-clusters',
    'how_steps_are_found.md': 'any_network.md#how-a-step-is-found',
    'researchers_afternoon.md': 'stiffness.md#a-researchers-afternoon',
    'segmentation.md': 'other_projects.md#segmentation-with-your-own-masks',
    'which_networks.md': 'any_network.md',
    'zoo.md': 'any_network.md#what-was-tried',
}
"""Addresses of version 0.3 and before, and where their text is now."""
COMMANDS = 'commands.md'
LINK = re.compile(r'(!?)\[((?:[^][]|\[[^]]*\])*)\]\(([^)\s]+)\)')


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add them under the paths of the checkout, and what is written here."""
    for pattern in BESIDE:
        for path in sorted(ROOT.glob(pattern)):
            files.append(
                File.generated(
                    config,
                    path.relative_to(ROOT).as_posix(),
                    abs_src_path=str(path),
                )
            )
    for old, new in MOVED.items():
        text = (
            '---\nsearch:\n  exclude: true\n---\n'
            f'# This page has moved\n\nIts text is [here]({new}).\n'
        )
        files.append(File.generated(config, old, content=text))
    commands = subprocess.run(
        [sys.executable, ROOT / 'docs' / '_site' / 'commands.py'],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    files.append(File.generated(config, COMMANDS, content=commands))
    return files


def on_page_markdown(
    markdown: str, page: Page, config: MkDocsConfig, files: Files
) -> str:
    """Lead links from and to these pages to where they are in the site."""
    if page.file.src_uri in (*MOVED, COMMANDS):
        return markdown
    source = Path(page.file.abs_src_path)
    here = PurePosixPath(page.file.src_uri)

    def lead(link: re.Match) -> str:
        picture, text, address = link.groups()
        target, hash_, anchor = address.partition('#')
        if '://' in address or not target:
            return link[0]
        path = (source.parent / target).resolve()
        for root in (Path(config.docs_dir), ROOT):
            if path.is_relative_to(root):
                uri = path.relative_to(root).as_posix()
                if files.get_file_from_path(uri):
                    up = '../' * (len(here.parts) - 1)
                    return f'{picture}[{text}]({up}{uri}{hash_}{anchor})'
        if not path.exists():
            return link[0]  # the strict build reports it
        return text

    return LINK.sub(lead, markdown)
