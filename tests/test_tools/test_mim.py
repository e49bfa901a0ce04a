import json

import pytest

from tests.test_tools import mim_trials

RECORD = json.loads(mim_trials.RECORD.read_text())
HERE = mim_trials.stack()


@pytest.mark.skipif(HERE is None, reason='no mim here')
@pytest.mark.parametrize('install', [
    pytest.param(mim_trials.INSTALLS[0], marks=pytest.mark.slow),
    mim_trials.INSTALLS[1]])
def test_mim_does_what_was_recorded(install, tmp_path):
    assert mim_trials.try_install(tmp_path, install) == RECORD[HERE][install]


def test_page_shows_what_was_recorded():
    page = mim_trials.PAGE.read_text()
    shown = page.split(mim_trials.BEGIN)[1].split(mim_trials.END)[0]
    assert shown == mim_trials.table(RECORD)
