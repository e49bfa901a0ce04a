"""TNS as a metric, against that of all samples at once."""

import numpy as np
import pytest
import torch

from mmstepnet.stiffness import total_neural_stiffness

pytest.importorskip('torchmetrics', reason='needs torchmetrics')


def test_over_batches_and_processes():
    from mmstepnet.integrations.torchmetrics import TotalNeuralStiffness
    nsi = np.random.default_rng(0).gamma(2, size=(5, 6))
    stages = np.array([0, 0, 0, 1, 1, 1])
    whole, *ranks = (TotalNeuralStiffness() for _ in range(3))
    for metric, rows in ((whole, nsi[:2]), (whole, nsi[2:]),
                         (ranks[0], nsi[:4]), (ranks[1], nsi[4:])):
        metric.update(torch.tensor(rows), torch.tensor(stages))
    assert float(whole.compute()) == pytest.approx(
        total_neural_stiffness(nsi, stages).mean())
    joined = TotalNeuralStiffness()
    for name in ('mean_value', 'weight'):  # as torchmetrics sums over ranks
        setattr(joined, name, joined._reductions[name](torch.stack(
            [getattr(metric, name) for metric in ranks])))
    joined._update_count = 1
    assert float(joined.compute()) == pytest.approx(float(whole.compute()))
