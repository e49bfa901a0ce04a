"""Exchanging ``type`` in the configs of the hosts' zoos."""

import re

import pytest

from benchmarks import zoo
from benchmarks.zoo import compare, exchanged


@pytest.mark.parametrize('wrong, message', [
    (dict(frozen_stages=1), 'frozen_stages is 1, not -1; other .*modules'),
    (dict(out_indices=(0, 1)), r'out_indices is \(0, 1\), not .*in eval'),
    (dict(avg_down=True), 'other keys: .*layer2.0.downsample')])
def test_the_comparison_sees_what_differs(wrong, message, monkeypatch):
    pytest.importorskip('mmdet')
    monkeypatch.setattr(zoo, 'exchanged',
                        lambda *args: {**exchanged(*args), **wrong})
    found = compare(dict(
        type='ResNet', depth=18, base_channels=8, _scope_='mmdet'))
    assert re.match(message, found, re.DOTALL), found
