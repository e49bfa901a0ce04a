"""Mesh files, labels of faces and the human segmentation set."""

import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from projects.metric_attention.datasets import HumanSegmentation
from projects.metric_attention.datasets.human_segmentation import (
    load_mesh,
    majority,
    mesh_edges,
    vertex_features,
)

HUMANS = next(
    (p for p in (Path('data/human_seg'), Path('../shared/data/human_seg'))
     if p.is_dir()), None)
needs_humans = pytest.mark.skipif(
    HUMANS is None, reason='no meshes in data/human_seg')

VERTICES = np.array([[1, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0], [0, 0, 1],
                     [0, 0, -1]], float)
FACES = np.array([[0, 2, 4], [2, 1, 4], [1, 3, 4], [3, 0, 4], [2, 0, 5],
                  [1, 2, 5], [3, 1, 5], [0, 3, 5]])
"""An octahedron."""


def save(folder, vertices=VERTICES, faces=FACES, labels=range(1, 9)):
    path = folder / 'mesh.npz'
    np.savez(path, vertices=vertices, faces=faces, labels=np.array(labels))
    return path


def test_majority_by_counting():
    labels = np.array(list(itertools.product(range(4), repeat=3)))
    expected = []
    for row in labels.tolist():
        most = max(Counter(row).values())
        expected.append(min(x for x in row if row.count(x) == most))
    assert majority(labels).tolist() == expected


def walk(faces):
    """MeshCNN's numbering, edge by edge."""
    number = {}
    for face in faces.tolist():
        for a, b in zip(face, face[1:] + face[:1]):
            number.setdefault((min(a, b), max(a, b)), len(number))
    return number


def test_edges_by_walking():
    rng = np.random.default_rng(0)
    faces = np.array([rng.permutation(12)[:3] for _ in range(60)])
    edges, of_face = mesh_edges(faces)
    number = walk(faces)
    assert edges.tolist() == [list(e) for e in number]
    for face, sides in zip(faces.tolist(), of_face.tolist()):
        assert sides == [number[min(a, b), max(a, b)]
                         for a, b in zip(face, face[1:] + face[:1])]


@pytest.mark.parametrize('kind, count', [
    ('face', 8), ('vertex', 6), ('edge', 12)])
def test_labels_of_faces_vertices_and_edges(tmp_path, kind, count):
    raw = np.random.default_rng(1).integers(1, 9, count)
    for name in ('train', 'seg'):
        (tmp_path / name).mkdir()
    rows = [f'v {x} {y} {z}' for x, y, z in VERTICES]
    rows += ['f ' + ' '.join(f'{corner + 1}//{corner + 1}' for corner in face)
             for face in FACES]
    (tmp_path / 'train/a.obj').write_text('# MeshCNN\n' + '\n'.join(rows))
    with pytest.raises(FileNotFoundError, match='a.eseg'):
        HumanSegmentation(str(tmp_path))
    path = tmp_path / 'seg/a.eseg'
    path.write_text('\n'.join(map(str, raw)))
    (sample, ) = HumanSegmentation(str(tmp_path)).samples
    assert (sample['faces'].numpy() == FACES).all()
    np.testing.assert_allclose(sample['inputs'][:, :3], VERTICES)
    number = walk(FACES)
    for i, face in enumerate(FACES.tolist()):
        if kind == 'face':
            seen = [raw[i]]
        elif kind == 'vertex':
            seen = raw[face].tolist()
        else:
            seen = [raw[number[min(a, b), max(a, b)]]
                    for a, b in zip(face, face[1:] + face[:1])]
        most = max(map(seen.count, seen))
        assert sample['labels'][i] + 1 == min(
            x for x in seen if seen.count(x) == most)


@pytest.mark.parametrize('change, text', [
    (dict(vertices=np.where(VERTICES == 1, np.nan, VERTICES)), 'finite'),
    (dict(faces=FACES - 1), 'name all of the vertices'),
    (dict(vertices=np.concatenate([VERTICES, [[9, 9, 9]]])), '0 to 6'),
    (dict(labels=[1] * 7 + [9]), 'from 1 to 8, got 1 to 9'),
    (dict(labels=[1, 2, 3]), '3 labels are neither'),
])
def test_bad_meshes(tmp_path, change, text):
    with pytest.raises(ValueError, match=text):
        load_mesh(save(tmp_path, **change))


def test_bad_folders(tmp_path):
    with pytest.raises(FileNotFoundError, match='no meshes of the split'):
        HumanSegmentation(str(tmp_path / 'nowhere'))
    with pytest.raises(ValueError, match="'val'"):
        HumanSegmentation(str(tmp_path), 'val')


@pytest.mark.parametrize('flip', [1, -1])
def test_features_of_an_ellipsoid(flip):
    """Normals of x^2/a^2 + ... = 1 are known, whichever way faces turn."""
    hull = pytest.importorskip('scipy.spatial').ConvexHull
    ball = np.random.default_rng(0).standard_normal((4000, 3))
    ball /= np.linalg.norm(ball, axis=1, keepdims=True)
    found = hull(ball)
    outwards = (np.cross(*(ball[found.simplices[:, k]]
                           - ball[found.simplices[:, 0]] for k in (1, 2)))
                * found.equations[:, :3]).sum(1) > 0
    faces = np.where(outwards[:, None], found.simplices,
                     found.simplices[:, ::-1])
    axes = np.array([1., 2., 0.5])
    features = vertex_features(ball * axes * 30 + 1000, faces[:, ::flip])
    points = features[:, :3]
    np.testing.assert_allclose(points.mean(0), 0, atol=1e-12)
    assert np.linalg.norm(points, axis=1).max() == pytest.approx(1)
    true = ball / axes
    true /= np.linalg.norm(true, axis=1, keepdims=True)
    assert (features[:, 3:] * true).sum(1).min() > 0.95


@needs_humans
def test_humans_against_the_archive():
    dataset = HumanSegmentation(str(HUMANS), 'test')
    assert len(dataset) == 18
    for (path, _), sample in zip(dataset.files, dataset.samples):
        raw = np.load(path)
        labels = raw['labels'].astype(int)
        # The archive lists each vertex's neighbours, padded with -1.
        pairs = {(i, i) for i in range(len(labels))}
        pairs |= {(i, j) for i, row in enumerate(raw['edges'].tolist())
                  for j in row if j >= 0}
        assert set(zip(*sample['neighbours'].tolist())) == pairs
        for face, label in zip(raw['faces'], sample['labels'].tolist()):
            count = list(labels[face]).count(label + 1)
            assert count > 1 or count == 1 and len(set(labels[face])) == 3
        inputs = sample['inputs']
        assert inputs.shape == (len(labels), 6) and inputs.isfinite().all()
        assert (inputs[:, :3] * inputs[:, 3:]).sum() > 0  # outwards


@needs_humans
def test_labels_of_edges_agree_with_those_of_vertices():
    """MeshCNN's label files number edges as we do."""
    for path in sorted((HUMANS / 'test').glob('*.npz'))[:4]:
        name = path.stem.removeprefix('test_').removesuffix(
            '_not_changed_1500')
        edges = load_mesh(path, HUMANS / 'eseg' / f'{name}.eseg')
        assert (edges.labels == load_mesh(path).labels).mean() > 0.9
