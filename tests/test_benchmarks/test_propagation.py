"""Speed is not tested, but that what is compared is what it says."""

import sys

import pytest
import torch

from benchmarks import propagation


@pytest.mark.parametrize('mode', ['inference', 'train'])
@pytest.mark.parametrize('setting', ['plain', 'key padding', 'causal'])
def test_contestants_compute_what_they_say(mode, setting, monkeypatch):
    monkeypatch.setattr(
        sys, 'argv', ['propagation', '--heads', '2', '--head-dims', '16']
    )
    args = propagation.parse_args()
    steps = {
        name: propagation.Contestant(name, args, mode, setting, 64).step()
        for name in propagation.CONTESTANTS
    }
    for name, other in (
        (propagation.BASELINE, 'dot product'),
        ('metric', 'metric N x N'),
    ):
        assert len(steps[name]) == (1 if mode == 'inference' else 4)
        for got, expected in zip(steps[name], steps[other]):
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(
        steps['metric'][0], steps[propagation.BASELINE][0], atol=0.1
    )
