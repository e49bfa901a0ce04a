"""Segmentation of meshes by the information propagation network."""

import torch
import torch.nn.functional as F
from mmengine.model import BaseDataPreprocessor, BaseModel
from torch import Tensor

from mmstepnet.registry import MODELS

from .ipn import InformationPropagationNetwork

JOIN_MESHES = dict(type='mmstepnet.MeshDataPreprocessor')


@MODELS.register_module()
class MeshDataPreprocessor(BaseDataPreprocessor):
    """Joins the meshes of a batch to one graph of several parts."""

    def forward(self, data: dict, training: bool = False) -> dict:
        """Join meshes, which no edge then connects.

        Args:
            data (dict): Lists, an entry for each of the B meshes: ``inputs``
                (V, C) of its vertices, ``neighbours`` (2, E) int64, pairs of
                vertices, sorted, each vertex with itself among them;
                ``faces`` (F, 3), int64; and, where known, ``labels`` (F,),
                int64.
            training (bool): Has no effect.

        Returns:
            dict: ``inputs`` of all vertices, the sparse ``mask`` of their
            graph, ``faces`` that count through, ``labels``, and
            ``face_counts``, a list of the faces of each mesh.
        """
        data = self.cast_data(data)
        counts = [len(x) for x in data['inputs']]
        starts = [sum(counts[:i]) for i in range(len(counts))]
        nodes = sum(counts)
        edges = _join(data['neighbours'], starts, 1)
        return dict(
            inputs=torch.cat(list(data['inputs'])),
            # Sorted mesh by mesh, hence sorted.
            mask=torch.sparse_coo_tensor(
                edges, edges.new_ones(edges.shape[1], dtype=torch.bool),
                (nodes, nodes), check_invariants=False, is_coalesced=True),
            faces=_join(data['faces'], starts, 0),
            labels=torch.cat(list(data['labels']))
            if 'labels' in data else None,
            face_counts=[len(f) for f in data['faces']])


def _join(indices: list[Tensor], starts: list[int], dim: int) -> Tensor:
    return torch.cat([i + start for i, start in zip(indices, starts)], dim)


@MODELS.register_module()
class FaceSegmentor(BaseModel):
    """Information propagation network on the vertices of meshes.

    Vertices that no edge connects have similarity zero. The features of a
    face are the mean of those of its three vertices, the "fixed linear
    aggregation layer" of https://arxiv.org/abs/2412.18288, Appendix A: which
    weights it has is not printed, so equal ones are a reading. The last
    linear layer and a mean may change places, so it does not matter which of
    them comes first.

    Args:
        network (dict): Arguments of :class:`InformationPropagationNetwork`;
            ``out_channels`` is the number of classes.
        data_preprocessor (dict): Joins meshes. Defaults to
            ``dict(type='mmstepnet.MeshDataPreprocessor')``.
    """

    def __init__(self, network: dict, data_preprocessor: dict = JOIN_MESHES):
        super().__init__(data_preprocessor=data_preprocessor)
        self.network = InformationPropagationNetwork(**network)

    def forward(self,
                inputs: Tensor,
                mask: Tensor,
                faces: Tensor,
                labels: Tensor | None = None,
                face_counts: list[int] | None = None,
                mode: str = 'tensor') -> Tensor | dict | list[dict]:
        """Label the faces of a batch, see :class:`MeshDataPreprocessor`.

        Args:
            inputs (Tensor): Features of the V vertices, (V, in_channels).
            mask (Tensor): Sparse bool neighbourhood (V, V).
            faces (Tensor): Vertices of the F faces, (F, 3), int64.
            labels (Tensor, optional): Classes (F,), int64. ``'loss'`` needs
                them.
            face_counts (list[int], optional): Faces of each mesh. Defaults
                to None: there is one mesh.
            mode (str): ``'tensor'``, ``'loss'`` or ``'predict'``.

        Returns:
            Tensor | dict | list[dict]: Logits (F, classes); the cross
            entropy over all faces, ``loss``; or for every mesh
            ``pred_label`` (F_i,) and, if there are labels, ``gt_label``
            (F_i,), as MMPretrain's ``Accuracy`` reads them: it then is that
            of all faces.

        Raises:
            ValueError: There is no vertex, features or mask do not fit, a
                vertex has no neighbour, or ``mode`` is none of the three.
        """
        logits = self.network(inputs, mask)[faces].mean(1)
        if mode == 'tensor':
            return logits
        if mode == 'loss':
            return dict(loss=F.cross_entropy(logits, labels))
        if mode == 'predict':
            counts = face_counts or [len(faces)]
            parts = [
                dict(pred_label=part)
                for part in logits.argmax(-1).split(counts)
            ]
            if labels is not None:
                for part, label in zip(parts, labels.split(counts)):
                    part['gt_label'] = label
            return parts
        raise ValueError("mode must be 'tensor', 'loss' or 'predict', got "
                         f'{mode!r}')
