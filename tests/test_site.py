"""The documents as a site."""

import os
import subprocess
import sys

import pytest

from tests.documents import ROOT


def test_builds_without_a_warning(tmp_path):
    pytest.importorskip('mkdocs', reason='needs requirements/docs.txt')
    done = subprocess.run(
        [sys.executable, '-m', 'mkdocs', 'build', '--strict', '--quiet',
         '--site-dir', str(tmp_path / 'site')], cwd=ROOT,
        capture_output=True, text=True,
        env={**os.environ, 'NO_MKDOCS_2_WARNING': '1'})
    assert done.returncode == 0, done.stderr
    page = (tmp_path / 'site' / 'api' / 'steps' / 'index.html').read_text()
    assert 'insert_steps' in page


def test_the_page_of_commands_is_that_of_their_parsers(tmp_path):
    pytest.importorskip('mmpretrain', reason='needs OpenMMLab')
    page = tmp_path / 'commands.md'
    subprocess.run(
        [sys.executable, '-W', 'ignore', 'docs/_site/commands.py', str(page)],
        cwd=ROOT, check=True, capture_output=True)
    assert page.read_text('utf-8') == (
        ROOT / 'docs' / 'commands.md').read_text('utf-8'), (
            'python docs/_site/commands.py writes it anew')
