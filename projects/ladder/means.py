"""Gates of a trained network are replaced by their means."""

import copy
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn as nn
from torch import Tensor

from mmstepnet.stiffness import measure_gates


@contextmanager
def norms_estimated_again(
    model: nn.Module, batches: Iterable[Tensor]
) -> Iterator[None]:
    """Let BNs know the statistics of a changed network, for a while."""
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    kept = [copy.deepcopy(norm.state_dict()) for norm in norms]
    momentum = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the mean over all batches
        norm.train()
    for x in batches:
        model(x)
    for norm in norms:
        norm.eval()
    yield
    for norm, state, old in zip(norms, kept, momentum):
        norm.load_state_dict(state)
        norm.momentum = old


@torch.no_grad()
def replace_gates(
    model: nn.Module,
    tested: Sequence[Tensor],
    labels: Tensor,
    trained: Sequence[Tensor],
) -> dict[str, float]:
    """Test a network with constants in place of its gates.

    Args:
        model (nn.Module): In evaluation mode.
        tested (Sequence): Batches, of which the means are taken, too.
        labels (Tensor): Their classes, (N,).
        trained (Sequence): Batches on which BNs are estimated again.

    Returns:
        dict: Accuracies in % with the gates ('attention'), with the mean of
        each channel, and with one number; behind them the same where BNs are
        estimated again.
    """
    again = []

    def share(network: nn.Module) -> float:
        right = torch.cat([network(x) for x in tested]).argmax(1) == labels
        return 100 * int(right.sum()) / len(labels)

    def accuracy(network: nn.Module) -> float:
        with norms_estimated_again(network, trained):
            again.append(share(network))
        return share(network)

    found = measure_gates(model, tested, accuracy).results
    return found | {
        f'{name}, BN again': value for name, value in zip(found, again)
    }
