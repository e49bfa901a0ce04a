"""TNS as a metric, against a grid over the degrees."""

import numpy as np
import pytest
import torch

pytest.importorskip('torchmetrics', reason='needs torchmetrics')


def by_grid(nsi, stages, steps=1500):
    """Definition 2 in its own words, on a grid of degrees."""
    total = []
    for row in nsi:
        means = np.array([row[stages == s].mean() for s in stages])
        m1 = (np.arange(steps) + 0.5) / steps * (row / means - 1).max()
        m2 = (np.arange(steps) + 0.5) / steps * row.max()
        stiff = np.zeros((steps, steps), bool)
        for value, mean in zip(row, means):
            stiff |= value >= np.maximum(
                mean * (1 + m1[:, None]), m2[None])
        total.append(stiff.mean() * (row / means - 1).max() * row.max())
    return np.mean(total)


def test_over_batches_and_processes():
    from mmstepnet.integrations.torchmetrics import TotalNeuralStiffness
    nsi = np.random.default_rng(0).gamma(2, size=(5, 6))
    stages = np.array([0, 0, 0, 1, 1, 1])
    whole, *ranks = (TotalNeuralStiffness() for _ in range(3))
    for metric, rows in ((whole, nsi[:2]), (whole, nsi[2:]),
                         (ranks[0], nsi[:4]), (ranks[1], nsi[4:])):
        metric.update(torch.tensor(rows), torch.tensor(stages))
    assert float(whole.compute()) == pytest.approx(
        by_grid(nsi, stages), rel=1e-2)
    joined = TotalNeuralStiffness()
    for name in ('total', 'samples'):  # as torchmetrics sums over ranks
        setattr(joined, name, joined._reductions[name](torch.stack(
            [getattr(metric, name) for metric in ranks])))
    joined._update_count = 1
    assert float(joined.compute()) == pytest.approx(float(whole.compute()))


def test_no_samples():
    from mmstepnet.integrations.torchmetrics import TotalNeuralStiffness
    with pytest.raises(ValueError, match='saw no samples'):
        TotalNeuralStiffness().compute()
