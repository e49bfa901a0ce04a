"""Meshes and their labels, from the formats in which they are published."""

import zlib
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

MESH_SUFFIXES = ('.npz', '.off', '.obj', '.ply')


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


def load_mesh(path: str | Path,
              labels: str | Path | None = None,
              classes: int = 8) -> Mesh:
    """Read a mesh and the labels of its faces.

    Labels count from 1 in all published files. They are taken for those of
    the faces, vertices or edges by their number; those of vertices and edges
    are turned into those of faces, see :func:`majority`.

    Args:
        path (str | Path): ``.npz`` with ``vertices`` (V, 3), ``faces`` (F, 3)
            and ``labels``, else ``.off``, ``.obj`` or ``.ply``, which
            trimesh reads.
        labels (str | Path, optional): Text file of one label a line, as
            Maron et al. publish them for faces (``.txt``) and MeshCNN for
            edges (``.eseg``). Defaults to None: they are in the ``.npz``.
        classes (int): Number of classes. Defaults to 8.

    Raises:
        FileNotFoundError: A file is missing.
        ImportError: trimesh is needed and not installed.
        ValueError: A file is damaged, a coordinate is not finite, a face
            names a vertex that is not there, a vertex is in no face, a label
            is not from 1 to ``classes``, or there are labels of another
            number than faces, vertices and edges.
    """
    path = Path(path)
    for file in filter(None, (path, labels)):
        if not Path(file).is_file():
            raise FileNotFoundError(f'there is no {file}; put the meshes '
                                    'there, or set data_root')
    if path.suffix == '.npz':
        vertices, faces, raw = _read_npz(path)
    else:
        vertices, faces, raw = *_read_with_trimesh(path), None
    if labels is not None:
        try:
            raw = np.loadtxt(labels, ndmin=1)
        except ValueError as error:
            raise ValueError(f'{labels} must hold one number a line '
                             f'({error})') from error
    if raw is None:
        raise ValueError(f'{path} holds no labels; give the file of labels')
    _check_geometry(path, vertices, faces)
    faces = faces.astype(np.int64)
    return Mesh(
        vertices.astype(np.float64), faces,
        _face_labels(labels or path, raw, len(vertices), faces, classes))


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
        np.sort(sides, 1), axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return edges[order], rank[number.reshape(-1)].reshape(faces.shape)


def _read_npz(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return tuple(archive[k] for k in ('vertices', 'faces', 'labels'))
    except KeyError as error:
        raise ValueError(f'{path} lacks {error}; a mesh has vertices, faces '
                         'and labels') from error
    except (OSError, EOFError, ValueError, RuntimeError, BadZipFile,
            zlib.error) as error:
        raise ValueError(f'{path} is no npz archive, or damaged '
                         f'({error!r})') from error


def _read_with_trimesh(path: Path) -> tuple[np.ndarray, np.ndarray]:
    if path.suffix not in MESH_SUFFIXES:
        raise ValueError(f'{path}: expected one of {MESH_SUFFIXES}')
    try:
        import trimesh
    except ImportError as error:
        raise ImportError(f'{path} needs trimesh; pip install '
                          'trimesh') from error
    try:
        # Processing would merge vertices, and labels be lost.
        mesh = trimesh.load(path, process=False, force='mesh')
        return np.asarray(mesh.vertices), np.asarray(mesh.faces)
    except Exception as error:  # whatever its many readers raise
        raise ValueError(f'{path} cannot be read as a mesh '
                         f'({error!r})') from error


def _check_geometry(path: Path, vertices: np.ndarray,
                    faces: np.ndarray) -> None:
    for name, array in (('vertices', vertices), ('faces', faces)):
        if array.ndim != 2 or array.shape[1] != 3 or not len(array):
            raise ValueError(f'{path}: {name} must be (N, 3) and not empty, '
                             f'got {array.shape}')
    if not np.isfinite(vertices).all():
        row = int(np.flatnonzero(~np.isfinite(vertices).all(1))[0])
        raise ValueError(f'{path}: vertex {row} is not finite: '
                         f'{vertices[row].tolist()}')
    if not 0 <= faces.min() <= faces.max() < len(vertices):
        raise ValueError(f'{path}: faces name vertices {faces.min()} to '
                         f'{faces.max()}; there are {len(vertices)}, from 0')
    used = np.bincount(faces.ravel().astype(np.int64),
                       minlength=len(vertices))
    if not used.all():
        raise ValueError(f'{path}: vertex {int(np.flatnonzero(used == 0)[0])} '
                         'is in no face, so that nothing informs it; remove '
                         'it')


def _face_labels(source: str | Path, raw: np.ndarray, vertices: int,
                 faces: np.ndarray, classes: int) -> np.ndarray:
    known = np.isin(raw, np.arange(1, classes + 1))
    if raw.ndim != 1 or not known.all():
        wrong = raw[~known][:1].tolist() or raw.shape
        raise ValueError(f'{source}: labels must be from 1 to {classes}, one '
                         f'each, got {wrong}')
    labels = raw.astype(np.int64) - 1
    if len(labels) == len(faces):
        return labels
    if len(labels) == vertices:
        return majority(labels[faces])
    edges, of_face = mesh_edges(faces)
    if len(labels) == len(edges):
        return majority(labels[of_face])
    raise ValueError(
        f'{source}: {len(labels)} labels are neither one each of the '
        f'{len(faces)} faces, nor of the {vertices} vertices, nor of the '
        f'{len(edges)} edges')
