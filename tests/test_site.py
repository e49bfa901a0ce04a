"""The documents as a site."""

import pytest

from tests.documents import ROOT
from tests.programs import run_tool


def test_builds_without_a_warning(tmp_path):
    pytest.importorskip('mkdocs', reason='needs requirements/docs.txt')
    run_tool(
        '-m',
        'mkdocs',
        'build',
        '--strict',
        '--quiet',
        '--site-dir',
        tmp_path / 'site',
        NO_MKDOCS_2_WARNING='1',
    )
    page = (tmp_path / 'site' / 'api' / 'steps' / 'index.html').read_text()
    assert 'insert_steps' in page


def test_the_page_of_commands_is_that_of_their_parsers(tmp_path):
    pytest.importorskip('mmpretrain', reason='needs OpenMMLab')
    page = tmp_path / 'commands.md'
    run_tool('-W', 'ignore', 'docs/_site/commands.py', page)
    assert page.read_text('utf-8') == (
        ROOT / 'docs' / 'commands.md'
    ).read_text('utf-8'), 'python docs/_site/commands.py writes it anew'
