"""torchmetrics: total neural stiffness as a metric over processes."""

import torch
from torch import Tensor
from torchmetrics import MeanMetric

from mmstepnet.stiffness import total_neural_stiffness


class TotalNeuralStiffness(MeanMetric):
    """TNS of a data set, the mean over all samples of all processes.

    Example:
        >>> import torch
        >>> from mmstepnet.integrations.torchmetrics import (
        ...     TotalNeuralStiffness)
        >>> metric = TotalNeuralStiffness()
        >>> nsi, stages = torch.tensor([[1.0, 3.0]]), torch.tensor([0, 0])
        >>> metric.update(nsi, stages)
        >>> metric.compute()
        tensor(1.5000)
    """

    def update(self, nsi: Tensor, stages: Tensor) -> None:
        """Add samples.

        Args:
            nsi (Tensor): NSI of each sample at each block, (N, L), as
                :attr:`TrajectoryRecorder.nsi` gives it.
            stages (Tensor): Stage of each block, (L,).
        """
        super().update(torch.as_tensor(total_neural_stiffness(nsi, stages)))
