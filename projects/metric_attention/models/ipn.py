"""Information propagation network.

Towards understanding how attention mechanism works in deep learning,
https://arxiv.org/abs/2412.18288, Section 4.2.
"""

import torch.nn as nn
from mmengine.model import BaseModule
from torch import Tensor

from mmstepnet.checks import check_positive
from mmstepnet.propagation import METRIC_PROPAGATION, build_propagation


class InformationPropagationNetwork(BaseModule):
    r"""Linear layer, propagation modules, linear layer.

    .. math::
        X_0 = X A + a, \qquad X_{t+1} = S(X_t) X_t, \qquad
        Y = X_k B + b

    As the paper has it (Algorithm 1): neither a value matrix nor a residual
    connection, norm or activation stands beside the modules, so that
    similarity is the only nonlinearity and mixing the only way from node to
    node. Many modules without skip connections bring all features together
    (Section 3.2), hence few. With attention blocks for modules, which is
    ours, :math:`X_{t+1} = S(X_t) (X_t W_t + w_t)`.

    Args:
        in_channels (int): Features of a node.
        embed_dims (int): Width of the propagation modules, Table 2.
        out_channels (int): Outputs for a node, such as classes.
        depth (int): Number k of propagation modules; 0 is the network
            without a propagation, S = I. Defaults to 2, a reading: the paper
            does not print it.
        propagation (dict): Config of the modules, a name in ``PROPAGATIONS``
            and its arguments. Defaults to the paper's,
            ``dict(type='Propagation', pseudo_metric=dict(type='Metric'))``.

    Raises:
        ValueError: A size is not a positive integer, or depth is negative.
        KeyError: The propagation is not registered.
    """

    def __init__(self,
                 in_channels: int,
                 embed_dims: int,
                 out_channels: int,
                 depth: int = 2,
                 propagation: dict = METRIC_PROPAGATION):
        super().__init__()
        check_positive('IPN', in_channels=in_channels, embed_dims=embed_dims,
                       out_channels=out_channels)
        if depth < 0:
            raise ValueError(f'IPN: depth must not be negative, got {depth}')
        self.in_channels = in_channels
        self.embed = nn.Linear(in_channels, embed_dims)
        self.propagations = nn.ModuleList(
            build_propagation(propagation, embed_dims) for _ in range(depth))
        self.head = nn.Linear(embed_dims, out_channels)

    def forward(self,
                x: Tensor,
                mask: Tensor | None = None,
                dense: bool = False) -> Tensor:
        """Map features of nodes to outputs.

        Args:
            x (Tensor): Features of the N nodes, (..., N, in_channels).
            mask (Tensor, optional): Who may inform whom, see
                :meth:`Propagation.forward`. Defaults to None: all.
            dense (bool): Take the N x N form. Defaults to False.

        Returns:
            Tensor: (..., N, out_channels).

        Raises:
            ValueError: There is no node, or its features are not
                ``in_channels`` many.
        """
        if (x.ndim < 2 or x.shape[-1] != self.in_channels
                or not x.numel()):
            raise ValueError(f'IPN: features must be (..., nodes, '
                             f'{self.in_channels}) with at least one node, '
                             f'got {tuple(x.shape)}')
        x = self.embed(x)
        for propagation in self.propagations:
            x = propagation(x, mask=mask, dense=dense)
        return self.head(x)
