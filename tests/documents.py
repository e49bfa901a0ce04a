"""What stands in the documents, configs and sources, for tests of them."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
READMES = (ROOT / 'README.md', ROOT / 'README_zh-CN.md')
PAGES = (
    *READMES,
    *sorted((ROOT / 'docs').glob('*.md')),
    *sorted((ROOT / 'docs' / 'api').glob('*.md')),
)
CONFIGS = sorted(
    path
    for folder in (ROOT / 'configs', *ROOT.glob('projects/*/configs'))
    for path in folder.rglob('*.py')
    if '_base_' not in path.parts
)
NUMBER = r'[+-]?\d+(?:\.\d+)?'
"""A pattern of a number as the pages write it."""


def snippets(path, language):
    """Text of the blocks of code in a language."""
    return re.findall(
        rf'^```{language}\n(.*?)^```',
        path.read_text('utf-8'),
        re.DOTALL | re.MULTILINE,
    )


def headings(path):
    """The anchors that GitHub and MkDocs make of a page's headings."""
    text = re.sub(
        r'^```.*?^```',
        '',
        path.read_text('utf-8'),
        flags=re.DOTALL | re.MULTILINE,
    )
    return {
        re.sub(r'[^\w\- ]', '', heading.lower()).replace(' ', '-')
        for heading in re.findall(r'^#+ (.*)$', text, re.MULTILINE)
    }


def near(shown, value):
    """Whether a number is another one, rounded once."""
    decimals = len(shown.partition('.')[2])
    return float(shown) == float(f'{value:.{decimals}f}')


def imported(path):
    """Full names that a file imports, in functions too."""
    package = path.relative_to(ROOT).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text('utf-8'))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1]
            base = '.'.join(
                (*(start if node.level else ()), *filter(None, [node.module]))
            )
            for alias in node.names:
                # A package's submodule, or a name of a module.
                yield f'{base}.{alias.name}'


def files(*folders):
    return [
        path
        for folder in folders
        for path in sorted((ROOT / folder).rglob('*.py'))
    ]
