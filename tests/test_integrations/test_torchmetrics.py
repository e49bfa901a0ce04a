"""TNS as a metric, against that of all samples at once."""

import numpy as np
import pytest
import torch

from mmstepnet.stiffness import total_neural_stiffness

pytest.importorskip('torchmetrics', reason='needs torchmetrics')


def test_over_batches():
    """Of which torchmetrics takes the mean, as it does over processes."""
    from mmstepnet.integrations.torchmetrics import TotalNeuralStiffness

    nsi, stages = np.random.default_rng(0).gamma(2, size=(5, 6)), [0, 0, 0] * 2
    metric = TotalNeuralStiffness()
    for rows in (nsi[:2], nsi[2:]):
        metric.update(torch.tensor(rows), torch.tensor(stages))
    assert float(metric.compute()) == pytest.approx(
        total_neural_stiffness(nsi, stages).mean()
    )
