"""Propagation by a pseudo-metric over the edges of PyTorch Geometric."""

from torch import Tensor
from torch_geometric.nn import MessagePassing
from torch_geometric.typing import OptTensor
from torch_geometric.utils import softmax

from mmstepnet.propagation.propagation import PropagationModule


class PropagationConv(MessagePassing):
    r"""A propagation or an attention block as a convolution of graphs.

    .. math::
        S_{ij} = \mathrm{softmax}_{j \in N(i)}
        (-f_\theta(x_i, x_j) / \varepsilon)

    What the module computes with the sparse mask of the same edges. A node
    that no edge leads to gets 0 in place of an error, or with several heads
    the bias of the output projection: add self-loops.

    Args:
        propagation (nn.Module): A :class:`mmstepnet.propagation.Propagation`
            or an attention block, such as ``MetricAttention``.

    Example:
        >>> import torch
        >>> from mmstepnet.integrations.torch_geometric import PropagationConv
        >>> from mmstepnet.propagation import MetricAttention
        >>> conv = PropagationConv(MetricAttention(8, num_heads=2))
        >>> edges = torch.tensor([[0, 1, 2], [1, 0, 2]])
        >>> tuple(conv(torch.rand(3, 8), edges).shape)
        (3, 8)
    """

    def __init__(self, propagation: PropagationModule):
        super().__init__(aggr='add')
        self.propagation = propagation

    def __repr__(self) -> str:
        """The module in it, for ``print(model)``; the host shows none."""
        return f'{type(self).__name__}({self.propagation})'

    def forward(
        self, x: Tensor | tuple[Tensor, Tensor], edge_index: Tensor
    ) -> Tensor:
        """Inform each node by its neighbours.

        Args:
            x (Tensor | tuple[Tensor, Tensor]): Nodes (N, C); or sources
                (M, C) and receivers (N, C) of a bipartite graph.
            edge_index (Tensor): (2, E) int64, sources above receivers, or a
                sparse adjacency of PyTorch Geometric.

        Returns:
            Tensor: (N, C).
        """
        sources, receivers = (x, x) if isinstance(x, Tensor) else x
        b, v = self.propagation.project(sources)
        a = self.propagation.pseudo_metric.map_receivers(receivers)
        return self.propagation.merge(
            self.propagate(
                edge_index,
                a=(None, a),
                b=(b, None),
                v=(v, None),
                size=(sources.shape[0], receivers.shape[0]),
            )
        )

    def message(
        self,
        a_i: Tensor,
        b_j: Tensor,
        v_j: Tensor,
        index: Tensor,
        ptr: OptTensor,
        size_i: int,
    ) -> Tensor:
        """Weigh what each edge brings, (H, E, D) -> (H, E, D)."""
        scores = -self.propagation.pseudo_metric.compare(a_i, b_j)
        weights = softmax(
            scores / self.propagation.eps, index, ptr, size_i, dim=-1
        )
        return weights.unsqueeze(-1) * v_j
