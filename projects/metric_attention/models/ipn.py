"""Information propagation network, on points and on meshes.

Towards understanding how attention mechanism works in deep learning,
https://arxiv.org/abs/2412.18288, Section 4.2.
"""

from functools import partial

import torch
import torch.nn as nn
import torch.nn.functional as F
from mmengine.model import BaseDataPreprocessor, BaseModel
from torch import Tensor

from mmstepnet import propagation as library
from mmstepnet.checks import check_positive
from mmstepnet.registry import MODELS

PAPER = dict(type='Propagation', pseudo_metric=dict(type='Metric'))


def build_propagation(cfg: dict, embed_dims: int, **kwargs) -> nn.Module:
    """Build a propagation or an attention block.

    Args:
        cfg (dict): ``type``, a class of :mod:`mmstepnet.propagation`, and its
            arguments; ``pseudo_metric`` is of the same form.
        embed_dims (int): Width of the tokens, points or nodes.
        **kwargs: Further arguments that the network sets, ``num_heads``.
    """
    cfg = dict(cfg)
    cls = getattr(library, cfg.pop('type'))
    if 'pseudo_metric' in cfg:
        metric = dict(cfg['pseudo_metric'])
        cfg['pseudo_metric'] = partial(
            getattr(library, metric.pop('type')), **metric
        )
    return cls(embed_dims, **kwargs, **cfg)


class InformationPropagationNetwork(nn.Module):
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
        propagation (dict): See :func:`build_propagation`. Defaults to the
            paper's, ``dict(type='Propagation',
            pseudo_metric=dict(type='Metric'))``.

    Raises:
        ValueError: A size is not a positive integer.
    """

    def __init__(
        self,
        in_channels: int,
        embed_dims: int,
        out_channels: int,
        depth: int = 2,
        propagation: dict = PAPER,
    ):
        super().__init__()
        check_positive(
            'IPN',
            in_channels=in_channels,
            embed_dims=embed_dims,
            out_channels=out_channels,
        )
        self.embed = nn.Linear(in_channels, embed_dims)
        self.propagations = nn.ModuleList(
            build_propagation(propagation, embed_dims) for _ in range(depth)
        )
        self.head = nn.Linear(embed_dims, out_channels)

    def forward(
        self, x: Tensor, mask: Tensor | None = None, dense: bool = False
    ) -> Tensor:
        """Map features of nodes to outputs.

        Args:
            x (Tensor): Features of the N nodes, (..., N, in_channels).
            mask (Tensor, optional): Who may inform whom, see
                :meth:`Propagation.forward`. Defaults to None: all.
            dense (bool): Take the N x N form. Defaults to False.

        Returns:
            Tensor: (..., N, out_channels).
        """
        x = self.embed(x)
        for propagation in self.propagations:
            x = propagation(x, mask=mask, dense=dense)
        return self.head(x)


@MODELS.register_module()
class PointClassifier(BaseModel):
    """Information propagation network whose nodes are a batch's points.

    Every point of a batch informs every other one, in testing too: what is
    predicted for a point depends on the points beside it. A test batch must
    therefore be composed as the training batches are, of many points in no
    order of classes, and always be the same.

    Args:
        network (dict): Arguments of :class:`InformationPropagationNetwork`;
            ``out_channels`` is the number of classes.
    """

    def __init__(self, network: dict, data_preprocessor: dict | None = None):
        super().__init__(data_preprocessor=data_preprocessor)
        self.network = InformationPropagationNetwork(**network)

    def forward(
        self, inputs: Tensor, labels: Tensor, mode: str = 'predict'
    ) -> dict | list[dict]:
        """Classify the N points of a batch.

        Args:
            inputs (Tensor): Features (N, in_channels).
            labels (Tensor): Classes (N,), int64.
            mode (str): ``'loss'`` or ``'predict'``.

        Returns:
            dict | list[dict]: The cross entropy, ``loss``; or for every point
            ``pred_score`` (classes,) and ``gt_label`` (1,), as MMPretrain's
            ``Accuracy`` reads them.
        """
        logits = self.network(inputs)
        if mode == 'loss':
            return dict(loss=F.cross_entropy(logits, labels))
        return [
            dict(pred_score=score, gt_label=label)
            for score, label in zip(logits.softmax(-1), labels[:, None])
        ]


@MODELS.register_module()
class MeshDataPreprocessor(BaseDataPreprocessor):
    """Joins the meshes of a batch to one graph of several parts."""

    def forward(self, data: dict, training: bool = False) -> dict:
        """Join meshes, which no edge then connects.

        Args:
            data (dict): Lists, an entry for each of the B meshes: ``inputs``
                (V, C) of its vertices, ``neighbours`` (2, E) int64, pairs of
                vertices, sorted, each vertex with itself among them;
                ``faces`` (F, 3) and ``labels`` (F,), int64.
            training (bool): Has no effect.

        Returns:
            dict: ``inputs`` of all vertices, the sparse ``mask`` of their
            graph, ``faces`` that count through, ``labels``, and
            ``face_counts``, a list of the faces of each mesh.
        """
        data = self.cast_data(data)
        counts = [len(x) for x in data['inputs']]
        nodes = sum(counts)
        edges, faces = (
            torch.cat(
                [
                    indices + sum(counts[:i])
                    for i, indices in enumerate(data[name])
                ],
                dim,
            )
            for name, dim in (('neighbours', 1), ('faces', 0))
        )
        return dict(
            inputs=torch.cat(list(data['inputs'])),
            # Sorted mesh by mesh, hence sorted.
            mask=torch.sparse_coo_tensor(
                edges,
                edges.new_ones(edges.shape[1], dtype=torch.bool),
                (nodes, nodes),
                check_invariants=False,
                is_coalesced=True,
            ),
            faces=faces,
            labels=torch.cat(list(data['labels'])),
            face_counts=[len(f) for f in data['faces']],
        )


@MODELS.register_module()
class FaceSegmentor(BaseModel):
    """Information propagation network on the vertices of meshes.

    Vertices that no edge connects have similarity zero. The features of a
    face are the mean of those of its three vertices, the "fixed linear
    aggregation layer" of Appendix A: which weights it has is not printed, so
    equal ones are a reading. The last linear layer and a mean may change
    places, so it does not matter which of them comes first.

    Args:
        network (dict): Arguments of :class:`InformationPropagationNetwork`;
            ``out_channels`` is the number of classes.
    """

    def __init__(self, network: dict):
        super().__init__(
            data_preprocessor=dict(type='mmstepnet.MeshDataPreprocessor')
        )
        self.network = InformationPropagationNetwork(**network)

    def forward(
        self,
        inputs: Tensor,
        mask: Tensor,
        faces: Tensor,
        labels: Tensor,
        face_counts: list[int],
        mode: str = 'predict',
    ) -> dict | list[dict]:
        """Label the faces of a batch, see :class:`MeshDataPreprocessor`.

        Args:
            inputs (Tensor): Features of the V vertices, (V, in_channels).
            mask (Tensor): Sparse bool neighbourhood (V, V).
            faces (Tensor): Vertices of the F faces, (F, 3), int64.
            labels (Tensor): Classes (F,), int64.
            face_counts (list[int]): Faces of each mesh.
            mode (str): ``'loss'`` or ``'predict'``.

        Returns:
            dict | list[dict]: The cross entropy over all faces, ``loss``; or
            for every mesh ``pred_label`` and ``gt_label`` (F_i,), as
            MMPretrain's ``Accuracy`` reads them: it then is that of all
            faces.
        """
        logits = self.network(inputs, mask)[faces].mean(1)
        if mode == 'loss':
            return dict(loss=F.cross_entropy(logits, labels))
        parts = logits.argmax(-1).split(face_counts)
        return [
            dict(pred_label=part, gt_label=label)
            for part, label in zip(parts, labels.split(face_counts))
        ]
