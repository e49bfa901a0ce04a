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
