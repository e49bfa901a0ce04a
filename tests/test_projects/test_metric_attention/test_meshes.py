"""Mesh files, labels of faces and the human segmentation set."""

import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from projects.metric_attention.datasets import HumanSegmentation, load_mesh
from projects.metric_attention.datasets.human_segmentation import (
    find_meshes,
    vertex_features,
)
from projects.metric_attention.datasets.mesh_files import majority, mesh_edges

HUMANS = next(
    (p for p in (Path('data/human_seg'), Path('../shared/data/human_seg'))
     if p.is_dir()), None)
needs_humans = pytest.mark.skipif(
    HUMANS is None, reason='no meshes in data/human_seg')

VERTICES = np.array([[0, 0, 0], [2, 0, 0], [0, 2, 0], [0, 0, 2]], float)
FACES = np.array([[0, 2, 1], [0, 1, 3], [0, 3, 2], [1, 2, 3]])
LABELS = [1, 5, 8, 2]


def save(folder, vertices=VERTICES, faces=FACES, labels=LABELS):
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


OFF = 'OFF\n4 4 6\n{}\n{}\n'
OBJ = '{}\n{}\n'
PLY = ('ply\nformat ascii 1.0\nelement vertex 4\nproperty float x\n'
       'property float y\nproperty float z\nelement face 4\n'
       'property list uchar int vertex_indices\nend_header\n{}\n{}\n')


@pytest.mark.parametrize('suffix, form, vertex, face, first', [
    ('.off', OFF, '', '3 ', 0), ('.ply', PLY, '', '3 ', 0),
    ('.obj', OBJ, 'v ', 'f ', 1)])
def test_published_formats(tmp_path, suffix, form, vertex, face, first):
    pytest.importorskip('trimesh')
    lines = [
        '\n'.join(head + ' '.join(map(str, row)) for row in rows)
        for head, rows in ((vertex, VERTICES.tolist()),
                           (face, (FACES + first).tolist()))
    ]
    path = tmp_path / f'mesh{suffix}'
    path.write_text(form.format(*lines))
    labels = tmp_path / 'labels.txt'
    labels.write_text('8\n1\n3\n3\n')
    mesh = load_mesh(path, labels)
    assert (mesh.vertices == VERTICES).all() and (mesh.faces == FACES).all()


def octahedron():
    vertices = np.array([[1, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0],
                         [0, 0, 1], [0, 0, -1]], float)
    faces = np.array([[0, 2, 4], [2, 1, 4], [1, 3, 4], [3, 0, 4], [2, 0, 5],
                      [1, 2, 5], [3, 1, 5], [0, 3, 5]])
    return vertices, faces


@pytest.mark.parametrize('kind, count', [
    ('face', 8), ('vertex', 6), ('edge', 12)])
def test_labels_of_faces_vertices_and_edges(tmp_path, kind, count):
    vertices, faces = octahedron()
    raw = np.random.default_rng(1).integers(1, 9, count)
    path = tmp_path / 'labels.eseg'
    path.write_text('\n'.join(map(str, raw)))
    mesh = load_mesh(save(tmp_path, vertices, faces), path)
    number = walk(faces)
    for i, face in enumerate(faces.tolist()):
        if kind == 'face':
            seen = [raw[i]]
        elif kind == 'vertex':
            seen = raw[face].tolist()
        else:
            seen = [raw[number[min(a, b), max(a, b)]]
                    for a, b in zip(face, face[1:] + face[:1])]
        most = max(map(seen.count, seen))
        assert mesh.labels[i] + 1 == min(
            x for x in seen if seen.count(x) == most)


def nan_vertex(folder):
    vertices = VERTICES.copy()
    vertices[2, 1] = np.nan
    return save(folder, vertices)


@pytest.mark.parametrize('make, match', [
    (nan_vertex, 'vertex 2 is not finite'),
    (lambda f: save(f, faces=np.where(FACES == 3, 4, FACES)),
     'faces name vertices 0 to 4; there are 4'),
    (lambda f: save(f, faces=FACES - 1), 'vertices -1 to 2'),
    (lambda f: save(f, np.concatenate([VERTICES, [[9, 9, 9]]])),
     'vertex 4 is in no face'),
    (lambda f: save(f, labels=[1, 2, 9, 1]), r'from 1 to 8, one each.*\[9\]'),
    (lambda f: save(f, labels=[0, 2, 3, 1]), 'got .0.'),
    (lambda f: save(f, labels=[1.5, 2, 3, 1]), 'got .1.5.'),
    (lambda f: save(f, labels=[1, 2, 3]), '3 labels are neither'),
    (lambda f: save(f, faces=FACES[:0]), 'faces must be'),
    (lambda f: save(f, VERTICES[:, :2]), 'vertices must be'),
])
def test_bad_meshes(tmp_path, make, match):
    with pytest.raises(ValueError, match=match):
        load_mesh(make(tmp_path))


def test_bad_files(tmp_path):
    with pytest.raises(FileNotFoundError, match='no .*away.npz'):
        load_mesh(tmp_path / 'away.npz')
    (tmp_path / 'cut.npz').write_bytes(save(tmp_path).read_bytes()[:200])
    with pytest.raises(ValueError, match='no npz archive'):
        load_mesh(tmp_path / 'cut.npz')
    np.savez(tmp_path / 'less.npz', vertices=VERTICES, faces=FACES)
    with pytest.raises(ValueError, match='lacks .*labels'):
        load_mesh(tmp_path / 'less.npz')
    (tmp_path / 'mesh.stl').write_text('solid')
    with pytest.raises(ValueError, match='expected one of'):
        load_mesh(tmp_path / 'mesh.stl', save(tmp_path))
    (tmp_path / 'words.txt').write_text('head\n')
    with pytest.raises(ValueError, match='one number a line'):
        load_mesh(save(tmp_path), tmp_path / 'words.txt')


@pytest.mark.parametrize('flip', [1, -1])
def test_features_of_an_ellipsoid(flip):
    """Normals of x^2/a^2 + ... = 1 are known, whichever way faces turn."""
    trimesh = pytest.importorskip('trimesh')
    ball = trimesh.creation.icosphere(subdivisions=4)
    axes = np.array([1., 2., 0.5])
    vertices = ball.vertices * axes * 30 + 1000
    features = vertex_features(vertices, ball.faces[:, ::flip])
    points = features[:, :3]
    np.testing.assert_allclose(points.mean(0), 0, atol=1e-12)
    assert np.linalg.norm(points, axis=1).max() == pytest.approx(1)
    true = ball.vertices / axes
    true /= np.linalg.norm(true, axis=1, keepdims=True)
    assert (features[:, 3:] * true).sum(1).min() > 0.995


def test_mesh_without_size():
    with pytest.raises(ValueError, match='all 4 vertices'):
        vertex_features(np.ones((4, 3)), FACES)


def touch(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text('')


def test_layouts(tmp_path):
    touch(tmp_path / 'cnn', 'train/a.obj', 'seg/a.eseg', 'train/cache.pkl')
    assert find_meshes(tmp_path / 'cnn', 'train') == [
        (tmp_path / 'cnn/train/a.obj', tmp_path / 'cnn/seg/a.eseg')]
    root = tmp_path / 'sig17'
    pairs = {
        'train/adobe/Fit.ply': 'train/adobe/Fit.txt',
        'train/faust/tr_reg_000.ply': 'train/faust/faust_corrected.txt',
        'train/MIT_animation/meshes_crane/meshes/m_0.obj':
            'train/mit/mit_crane_corrected.txt',
        'train/scape/mesh000.ply': 'train/scape/scape_corrected.txt',
        'test/shrec/1.off': 'test/shrec/shrec_1_full.txt',
        'test/shrec/12_fix_orientation.off': 'test/shrec/shrec_12_full.txt',
    }
    touch(root, *(f'meshes/{m}' for m in pairs),
          *(f'segs/{s}' for s in pairs.values()),
          'meshes/test/shrec/12.off', 'meshes/test/shrec/16.off')
    for split, count in (('train', 4), ('test', 2)):
        expected = sorted((root / 'meshes' / m, root / 'segs' / s)
                          for m, s in pairs.items() if m.startswith(split))
        assert len(expected) == count
        assert sorted(find_meshes(root, split)) == expected
    with pytest.raises(FileNotFoundError, match='seg/a.eseg|a.eseg'):
        (tmp_path / 'cnn/seg/a.eseg').unlink()
        HumanSegmentation(str(tmp_path / 'cnn'))
    with pytest.raises(FileNotFoundError, match="no meshes of the split"):
        HumanSegmentation(str(tmp_path / 'nowhere'))
    with pytest.raises(ValueError, match="'val'"):
        HumanSegmentation(str(tmp_path), 'val')


@needs_humans
def test_humans_against_the_archive():
    dataset = HumanSegmentation(str(HUMANS), 'test')
    assert len(dataset) == 18
    for (path, _), sample in zip(dataset.files, dataset.samples):
        raw = np.load(path)
        faces, labels = raw['faces'], raw['labels'].astype(int)
        assert (sample['faces'].numpy() == faces).all()
        # The archive lists each vertex's neighbours, padded with -1.
        pairs = {(i, i) for i in range(len(labels))}
        pairs |= {(i, j) for i, row in enumerate(raw['edges'].tolist())
                  for j in row if j >= 0}
        assert set(zip(*sample['neighbours'].tolist())) == pairs
        for face, label in zip(faces.tolist(), sample['labels'].tolist()):
            assert label + 1 in labels[face]
            assert list(labels[face]).count(label + 1) > 1 or len(
                set(labels[face])) == 3
        assert sample['inputs'].shape == (len(labels), 6)
        assert sample['inputs'].isfinite().all()
        outwards = (sample['inputs'][:, :3] * sample['inputs'][:, 3:]).sum()
        assert outwards > 0


@needs_humans
def test_labels_of_edges_agree_with_those_of_vertices():
    """MeshCNN's label files number edges as we do."""
    for path in sorted((HUMANS / 'test').glob('*.npz'))[:4]:
        name = path.stem.removeprefix('test_').removesuffix(
            '_not_changed_1500')
        edges = load_mesh(path, HUMANS / 'eseg' / f'{name}.eseg')
        vertices = load_mesh(path)
        assert (edges.labels == vertices.labels).mean() > 0.9
        assert torch.bincount(torch.from_numpy(edges.labels)).numel() == 8
