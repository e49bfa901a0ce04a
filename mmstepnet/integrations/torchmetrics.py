"""torchmetrics: total neural stiffness as a metric over processes."""

from typing import Any

import torch
from torch import Tensor

from mmstepnet.checks import check_installed
from mmstepnet.stiffness import total_neural_stiffness

check_installed(__name__, 'torchmetrics', install='torchmetrics')

from torchmetrics import Metric  # noqa: E402


class TotalNeuralStiffness(Metric):
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

    total: Tensor
    samples: Tensor
    is_differentiable = False
    higher_is_better = None
    full_state_update = False

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.add_state('total', torch.tensor(0., dtype=torch.float64),
                       dist_reduce_fx='sum')
        self.add_state('samples', torch.tensor(0), dist_reduce_fx='sum')

    def update(self, nsi: Tensor, stages: Tensor) -> None:
        """Add samples.

        Args:
            nsi (Tensor): NSI of each sample at each block, (N, L), as
                :attr:`TrajectoryRecorder.nsi` gives it.
            stages (Tensor): Stage of each block, (L,).
        """
        tns = total_neural_stiffness(nsi, stages)
        self.total += torch.as_tensor(tns, dtype=self.total.dtype).sum()
        self.samples += len(nsi)

    def compute(self) -> Tensor:
        """The mean.

        Raises:
            ValueError: There were no samples.
        """
        if not self.samples:
            raise ValueError('TotalNeuralStiffness saw no samples; call '
                             'update(nsi, stages) before compute()')
        return (self.total / self.samples).float()
