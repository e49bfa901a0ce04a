"""The page against the rows that it shows."""

import pytest

from mmstepnet.trials.comparison import Comparison
from mmstepnet.trials.rows import Rows
from tests.documents import ROOT

PAGE = ROOT / 'docs' / 'is_it_worth_it.md'


@pytest.mark.parametrize('name', ['worth_digits'])
def test_what_was_said(name):
    rows = Rows(ROOT / 'docs' / 'recordings' / f'{name}.jsonl')
    assert str(Comparison(rows)) in PAGE.read_text('utf-8')
