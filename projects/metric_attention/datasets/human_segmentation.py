"""Human mesh segmentation (Maron et al., SIGGRAPH 2017)."""

from pathlib import Path

import numpy as np
import torch
from rich.progress import Progress
from torch import Tensor
from torch.utils.data import Dataset

from mmstepnet.checks import check_choice
from mmstepnet.propagation import neighbourhood
from mmstepnet.registry import DATASETS

from .mesh_files import MESH_SUFFIXES, load_mesh, mesh_edges

HUMAN_PARTS = ('head', 'hand', 'lower arm', 'upper arm', 'body', 'upper leg',
               'lower leg', 'foot')
HUMAN_SPLITS = ('train', 'test')


@DATASETS.register_module()
class HumanSegmentation(Dataset):
    """381 meshes of humans to train with and 18 to test with, 8 parts.

    Convolutional Neural Networks on Surfaces via Seamless Toric Covers. The
    layouts of ``data_root`` that are known:

    - ``{train,test}/*.npz``, 1,500 faces each, a label a vertex;
    - ``{train,test}/*.obj`` beside ``seg/*.eseg``, MeshCNN's, 1,500 faces
      each, a label an edge;
    - ``meshes/{train,test}/...`` beside ``segs/{train,test}/...``, the
      original ``sig17_seg_benchmark``, a label a face.

    See :func:`load_mesh` for how the labels of faces follow. A sample is a
    dict of ``inputs`` (V, 6), float32, see :func:`vertex_features`;
    ``neighbours`` (2, E), int64, see :func:`neighbourhood`; ``faces`` (F, 3)
    and ``labels`` (F,), int64.

    Args:
        data_root (str): One of the layouts.
        split (str): ``'train'`` or ``'test'``. Defaults to ``'train'``.

    Raises:
        FileNotFoundError: There is no mesh, or a mesh without its labels.
        ValueError: ``split`` is neither, or a file is damaged, see
            :func:`load_mesh`.
    """

    METAINFO = dict(classes=HUMAN_PARTS)

    def __init__(self, data_root: str, split: str = 'train'):
        check_choice('HumanSegmentation: split', split, HUMAN_SPLITS)
        self.metainfo = dict(self.METAINFO)
        self.files = find_meshes(data_root, split)
        self.samples = []
        # Not rich's track(): where a mesh is refused its thread lives on
        # until the generator is collected, and may then wait for ever.
        with Progress(transient=True) as progress:
            task = progress.add_task(f'Reading meshes ({split})',
                                     total=len(self.files))
            for files in self.files:
                self.samples.append(_sample(*files))
                progress.advance(task)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return self.samples[index]


def vertex_features(vertices: np.ndarray, faces: np.ndarray) -> np.ndarray:
    """Normalised coordinates and normals, the six inputs of a vertex.

    Coordinates are centred by the mean of the vertices and divided by the
    distance of the furthest. A normal is the mean of those of the vertex's
    faces, weighted by their areas; it points outwards, that is, all are
    reversed where the faces enclose a negative volume, as those of one mesh
    of the set do. Where faces cancel it is zero.

    Args:
        vertices (ndarray): (V, 3).
        faces (ndarray): (F, 3).

    Returns:
        ndarray: (V, 6), float64.

    Raises:
        ValueError: All vertices are in one place.
    """
    points = vertices - vertices.mean(0)
    radius = np.linalg.norm(points, axis=1).max()
    if not radius > 0:
        raise ValueError(f'all {len(vertices)} vertices of the mesh are in '
                         'one place, so that it has no size to divide by')
    points = points / radius
    a, b, c = points[faces].transpose(1, 0, 2)
    areas = np.cross(b - a, c - a)
    if (a * areas).sum() < 0:
        areas = -areas
    normals = np.zeros_like(points)
    for corner in faces.T:
        np.add.at(normals, corner, areas)
    length = np.linalg.norm(normals, axis=1, keepdims=True)
    normals = np.divide(normals, length, np.zeros_like(normals),
                        where=length > 0)
    return np.concatenate([points, normals], 1)


def find_meshes(data_root: str | Path,
                split: str) -> list[tuple[Path, Path | None]]:
    """List meshes with their files of labels, None where it is the mesh's.

    Raises:
        FileNotFoundError: There is none.
    """
    root = Path(data_root)
    if (root / 'meshes').is_dir():
        found = _find_original(root / 'meshes' / split, root / 'segs' / split)
    elif (root / split).is_dir():
        meshes = sorted(p for p in (root / split).iterdir()
                        if p.suffix in MESH_SUFFIXES)
        found = [(p, None if p.suffix == '.npz' else root / 'seg'
                  / f'{p.stem}.eseg') for p in meshes]
    else:
        found = []
    if not found:
        raise FileNotFoundError(
            f'there are no meshes of the split {split!r} in {root}; expected '
            f'{split}/*.npz, {split}/*.obj beside seg/*.eseg, or '
            f'meshes/{split}/ beside segs/{split}/; unpack them there, or '
            'set data_root')
    return found


def _find_original(meshes: Path, labels: Path) -> list[tuple[Path, Path]]:
    """Meshes of Maron et al.; a source's poses share a file of labels."""
    found = []
    for path in sorted(meshes.rglob('*')):
        if path.suffix not in MESH_SUFFIXES:
            continue
        source, *below = path.relative_to(meshes).parts
        if source == 'MIT_animation':
            pose = below[0].removeprefix('meshes_')
            name = f'mit/mit_{pose}_corrected.txt'
        elif source == 'shrec':
            name = f'shrec/shrec_{path.stem.partition("_")[0]}_full.txt'
            fixed = path.with_stem(f'{path.stem}_fix_orientation')
            if fixed.exists() or not (labels / name).exists():
                # Numbers 16 and 18 have no labels and are in no split.
                continue
        elif source in ('faust', 'scape'):
            name = f'{source}/{source}_corrected.txt'
        else:
            name = f'{source}/{path.stem}.txt'
        found.append((path, labels / name))
    return found


def _sample(path: Path, labels: Path | None) -> dict[str, Tensor]:
    mesh = load_mesh(path, labels, len(HUMAN_PARTS))
    features = vertex_features(mesh.vertices, mesh.faces)
    edges = torch.from_numpy(mesh_edges(mesh.faces)[0])
    return dict(
        inputs=torch.from_numpy(features).float(),
        neighbours=neighbourhood(edges, len(features)).indices(),
        faces=torch.from_numpy(mesh.faces),
        labels=torch.from_numpy(mesh.labels))
