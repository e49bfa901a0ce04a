"""The documents as a site."""

import numpy as np
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


def test_the_picture_of_the_first_page(tmp_path):
    """It is drawn again, and shows what the sentence below it says."""
    for library in ('altair', 'vl_convert', 'PIL'):
        pytest.importorskip(library)
    path = tmp_path / 'picture.png'
    run_tool('docs/_site/picture.py', path)
    for picture in path, ROOT / 'docs' / 'where_it_works_hard.png':
        assert picture.stat().st_size < 60_000
    plain, se, stepnet = (
        np.load(ROOT / 'docs' / 'recordings' / f'resnet20_{name}.npz')[
            'unit'
        ].mean(0)
        for name in ('plain', 'se', 'stepnet')
    )
    assert plain.argmax() == 4 and plain[4] > 1
    assert (stepnet < np.minimum(plain, se)).all()
    assert sorted(stepnet.argsort()[:2]) == [4, 5]
