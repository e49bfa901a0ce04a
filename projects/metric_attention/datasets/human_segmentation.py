"""Human mesh segmentation (Maron et al., SIGGRAPH 2017)."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from mmstepnet.checks import check_choice
from mmstepnet.propagation import neighbourhood
from mmstepnet.registry import DATASETS

HUMAN_PARTS = (
    'head',
    'hand',
    'lower arm',
    'upper arm',
    'body',
    'upper leg',
    'lower leg',
    'foot',
)


@dataclass(frozen=True)
class Mesh:
    """A triangle mesh.

    Attributes:
        vertices (ndarray): Coordinates (V, 3), float64.
        faces (ndarray): Vertices of each face (F, 3), int64, from 0.
        labels (ndarray): Class of each face (F,), int64, from 0.
    """

    vertices: np.ndarray
    faces: np.ndarray
    labels: np.ndarray


@DATASETS.register_module()
class HumanSegmentation(Dataset):
    """381 meshes of humans to train with and 18 to test with, 8 parts.

    Convolutional Neural Networks on Surfaces via Seamless Toric Covers, in
    the version of 1,500 faces each. Two layouts of ``data_root`` are known:
    ``{train,test}/*.npz``, which hold a label a vertex, and MeshCNN's
    ``{train,test}/*.obj`` beside ``seg/*.eseg``, which hold a label an edge.

    A sample is a dict of ``inputs`` (V, 6), float32, see
    :func:`vertex_features`; ``neighbours`` (2, E), int64, see
    :func:`neighbourhood`; ``faces`` (F, 3) and ``labels`` (F,), int64.

    Args:
        data_root (str): Folder of one of the layouts.
        split (str): ``'train'`` or ``'test'``. Defaults to ``'train'``.

    Raises:
        FileNotFoundError: There is no mesh, or a mesh without its labels.
        ValueError: ``split`` is neither, or see :func:`load_mesh`.
    """

    METAINFO = dict(classes=HUMAN_PARTS)

    def __init__(self, data_root: str, split: str = 'train'):
        check_choice('HumanSegmentation: split', split, ('train', 'test'))
        self.metainfo = dict(self.METAINFO)
        root = Path(data_root)
        self.files = [
            (
                path,
                None
                if path.suffix == '.npz'
                else root / 'seg' / f'{path.stem}.eseg',
            )
            for path in sorted((root / split).glob('*'))
            if path.suffix in ('.npz', '.obj')
        ]
        if not self.files:
            raise FileNotFoundError(
                f'there are no meshes of the split {split!r} in {root}; '
                f'expected {split}/*.npz, or {split}/*.obj beside seg/*.eseg'
            )
        self.samples = [_sample(load_mesh(*files)) for files in self.files]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return self.samples[index]


def load_mesh(
    path: Path, labels: Path | None = None, classes: int = len(HUMAN_PARTS)
) -> Mesh:
    """Read a mesh and the labels of its faces.

    Labels count from 1. They are taken for those of the faces, vertices or
    edges by their number; those of vertices and edges are turned into those
    of faces, see :func:`majority`.

    Args:
        path (Path): ``.npz`` with ``vertices`` (V, 3), ``faces`` (F, 3) and
            ``labels``, or ``.obj``.
        labels (Path, optional): Text file of one label a line. Defaults to
            None: they are in the ``.npz``.
        classes (int): Number of classes. Defaults to 8.

    Raises:
        ValueError: A coordinate is not finite, a face names a vertex that is
            not there, a vertex is in no face, a label is not from 1 to
            ``classes``, or there are labels of another number than faces,
            vertices and edges.
    """
    if path.suffix == '.npz':
        with np.load(path, allow_pickle=False) as archive:
            vertices, faces, raw = (
                archive[k] for k in ('vertices', 'faces', 'labels')
            )
    else:
        lines = [line.split() for line in path.read_text().splitlines()]
        vertices = np.array(
            [line[1:4] for line in lines if line[:1] == ['v']], float
        )
        faces = (
            np.array(
                [
                    [corner.partition('/')[0] for corner in line[1:4]]
                    for line in lines
                    if line[:1] == ['f']
                ],
                int,
            )
            - 1
        )
    if labels is not None:
        raw = np.loadtxt(labels, ndmin=1)
    faces = faces.astype(np.int64)
    if not np.isfinite(vertices).all() or not np.array_equal(
        np.unique(faces), np.arange(len(vertices))
    ):
        raise ValueError(
            f'{path}: coordinates must be finite, and the faces must name '
            f'all of the vertices 0 to {len(vertices) - 1} and no others'
        )
    if not np.isin(raw, np.arange(1, classes + 1)).all():
        raise ValueError(
            f'{path}: labels must be from 1 to {classes}, got '
            f'{raw.min()} to {raw.max()}'
        )
    edges, of_face = mesh_edges(faces)
    corners = {
        len(faces): np.arange(len(faces))[:, None].repeat(3, 1),
        len(edges): of_face,
        len(vertices): faces,
    }.get(len(raw))
    if corners is None:
        raise ValueError(
            f'{path}: {len(raw)} labels are neither one each of the '
            f'{len(faces)} faces, nor of the {len(vertices)} vertices, nor '
            f'of the {len(edges)} edges'
        )
    return Mesh(
        vertices.astype(np.float64),
        faces,
        majority(raw.astype(np.int64)[corners] - 1),
    )


def majority(labels: np.ndarray) -> np.ndarray:
    """The most frequent of three labels; the least one where all differ.

    Args:
        labels (ndarray): Integers (F, 3).

    Returns:
        ndarray: (F,).
    """
    # Of three sorted ones the middle is in the majority, if there is any.
    ordered = np.sort(labels, 1)
    tie = (ordered[:, 0] < ordered[:, 1]) & (ordered[:, 1] < ordered[:, 2])
    return np.where(tie, ordered[:, 0], ordered[:, 1])


def mesh_edges(faces: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Number the edges as they are met walking round face after face.

    MeshCNN's order, in which an ``.eseg`` lists its labels.

    Args:
        faces (ndarray): (F, 3).

    Returns:
        tuple: Edges (E, 2), the lesser vertex first, and the numbers of each
        face's edges (F, 3), those from its first to its second vertex, from
        the second to the third, and from the third to the first.
    """
    sides = np.stack([faces, np.roll(faces, -1, 1)], -1).reshape(-1, 2)
    edges, first, number = np.unique(
        np.sort(sides, 1), axis=0, return_index=True, return_inverse=True
    )
    order = np.argsort(first)
    rank = np.argsort(order)
    return edges[order], rank[number.reshape(-1)].reshape(faces.shape)


def vertex_features(vertices: np.ndarray, faces: np.ndarray) -> np.ndarray:
    """Normalised coordinates and normals, the six inputs of a vertex.

    Coordinates are centred by the mean of the vertices and divided by the
    distance of the furthest. A normal is the mean of those of the vertex's
    faces, weighted by their areas; it points outwards, that is, all are
    reversed where the faces enclose a negative volume, as those of one mesh
    of the set do. Where faces cancel it is zero.

    Args:
        vertices (ndarray): (V, 3), not all in one place.
        faces (ndarray): (F, 3).

    Returns:
        ndarray: (V, 6), float64.
    """
    points = vertices - vertices.mean(0)
    points = points / np.linalg.norm(points, axis=1).max()
    a, b, c = points[faces].transpose(1, 0, 2)
    areas = np.cross(b - a, c - a)
    if (a * areas).sum() < 0:
        areas = -areas
    normals = np.zeros_like(points)
    for corner in faces.T:
        np.add.at(normals, corner, areas)
    length = np.linalg.norm(normals, axis=1, keepdims=True)
    normals = np.divide(
        normals, length, np.zeros_like(normals), where=length > 0
    )
    return np.concatenate([points, normals], 1)


def _sample(mesh: Mesh) -> dict[str, Tensor]:
    features = vertex_features(mesh.vertices, mesh.faces)
    edges = torch.from_numpy(mesh_edges(mesh.faces)[0])
    return dict(
        inputs=torch.from_numpy(features).float(),
        neighbours=neighbourhood(edges, len(features)).indices(),
        faces=torch.from_numpy(mesh.faces),
        labels=torch.from_numpy(mesh.labels),
    )
