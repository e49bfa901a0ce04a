"""The page's verdicts against no propagation are those of the stored rows."""

import json
import math

import numpy as np
import pytest
from scipy.stats import t

from projects.metric_attention import no_propagation
from tests.documents import ROOT

RESULTS = ROOT / 'projects' / 'reproduction' / 'results'


@pytest.mark.filterwarnings('ignore::RuntimeWarning')
def test_the_page_shows_every_comparison():
    page = (ROOT / 'docs' / 'metric_attention.md').read_text('utf-8')
    rows = no_propagation.comparisons()
    assert len(rows) == 9
    for row in rows:
        assert f'| {" | ".join(row)} |' in page


def test_an_interval_by_hand():
    """Of the files themselves, by the formula of paired differences."""
    def read(name):
        return [json.loads((RESULTS / name / f'seed_{s}.json').read_text())[
            'last']['metrics']['accuracy/top1'] for s in range(1, 11)]

    d = np.subtract(read('ipn_l2-1_printed_mnist'),
                    read('ipn_none_printed_mnist'))
    half = t.ppf(0.975, 9) * d.std(ddof=1) / math.sqrt(10)
    (row, ) = [r for r in no_propagation.comparisons()
               if r[:2] == ['MNIST', 'L2']]
    assert row[4] == (f'{d.mean():+.2f} [{d.mean() - half:+.2f}, '
                      f'{d.mean() + half:+.2f}]')
    assert row[6] == 'helps' and d.mean() - half > 0
