"""What stands in the documents, for the tests that run it; all configs."""

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
