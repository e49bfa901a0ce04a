"""Mesh files, labels of faces and the human segmentation set."""

import numpy as np
import pytest
from scipy.spatial import ConvexHull

from projects.metric_attention.datasets import HumanSegmentation
from projects.metric_attention.datasets.human_segmentation import (
    load_mesh,
    vertex_features,
)
from tests.utils import OCTAHEDRON

VERTICES = np.array(
    [[1, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0], [0, 0, 1], [0, 0, -1]],
    float,
)


def walk(faces):
    """MeshCNN's numbering, edge by edge."""
    number = {}
    for face in faces.tolist():
        for a, b in zip(face, face[1:] + face[:1]):
            number.setdefault((min(a, b), max(a, b)), len(number))
    return number


@pytest.mark.parametrize(
    'kind, count', [('face', 8), ('vertex', 6), ('edge', 12)]
)
def test_labels_of_faces_vertices_and_edges(tmp_path, kind, count):
    raw = np.random.default_rng(1).integers(1, 4, count)  # some alike
    for name in ('train', 'seg'):
        (tmp_path / name).mkdir()
    rows = [f'v {x} {y} {z}' for x, y, z in VERTICES]
    rows += [
        'f ' + ' '.join(f'{corner + 1}//{corner + 1}' for corner in face)
        for face in OCTAHEDRON
    ]
    (tmp_path / 'train/a.obj').write_text('# MeshCNN\n' + '\n'.join(rows))
    with pytest.raises(FileNotFoundError, match='a.eseg'):
        HumanSegmentation(str(tmp_path))
    path = tmp_path / 'seg/a.eseg'
    path.write_text('\n'.join(map(str, raw)))
    (sample,) = HumanSegmentation(str(tmp_path)).samples
    assert (sample['faces'].numpy() == OCTAHEDRON).all()
    np.testing.assert_allclose(sample['inputs'][:, :3], VERTICES)
    number = walk(OCTAHEDRON)
    for i, face in enumerate(OCTAHEDRON.tolist()):
        if kind == 'face':
            seen = [raw[i]]
        elif kind == 'vertex':
            seen = raw[face].tolist()
        else:
            seen = [
                raw[number[min(a, b), max(a, b)]]
                for a, b in zip(face, face[1:] + face[:1])
            ]
        most = max(map(seen.count, seen))
        assert sample['labels'][i] + 1 == min(
            x for x in seen if seen.count(x) == most
        )


@pytest.mark.parametrize(
    'change, text',
    [
        pytest.param(
            dict(vertices=np.where(VERTICES == 1, np.nan, VERTICES)),
            'finite',
            id='NaN',
        ),
        pytest.param(
            dict(faces=OCTAHEDRON - 1),
            'name all of the vertices',
            id='vertices from -1',
        ),
        pytest.param(
            dict(vertices=np.concatenate([VERTICES, [[9, 9, 9]]])),
            '0 to 6',
            id='an unused vertex',
        ),
        pytest.param(
            dict(labels=[1] * 7 + [9]),
            'from 1 to 8, got 1 to 9',
            id='a label too high',
        ),
        pytest.param(
            dict(labels=[1, 2, 3]), '3 labels are neither', id='too few labels'
        ),
    ],
)
def test_bad_meshes(tmp_path, change, text):
    parts = dict(vertices=VERTICES, faces=OCTAHEDRON, labels=range(1, 9))
    np.savez(tmp_path / 'mesh.npz', **{**parts, **change})
    with pytest.raises(ValueError, match=text):
        load_mesh(tmp_path / 'mesh.npz')


@pytest.mark.parametrize('flip', [1, -1])
def test_features_of_an_ellipsoid(flip):
    """Normals of x^2/a^2 + ... = 1 are known, whichever way faces turn."""
    ball = np.random.default_rng(0).standard_normal((4000, 3))
    ball /= np.linalg.norm(ball, axis=1, keepdims=True)
    found = ConvexHull(ball)
    outwards = (
        np.cross(
            *(
                ball[found.simplices[:, k]] - ball[found.simplices[:, 0]]
                for k in (1, 2)
            )
        )
        * found.equations[:, :3]
    ).sum(1) > 0
    faces = np.where(
        outwards[:, None], found.simplices, found.simplices[:, ::-1]
    )
    axes = np.array([1.0, 2.0, 0.5])
    features = vertex_features(ball * axes * 30 + 1000, faces[:, ::flip])
    points = features[:, :3]
    np.testing.assert_allclose(points.mean(0), 0, atol=1e-12)
    assert np.linalg.norm(points, axis=1).max() == pytest.approx(1)
    true = ball / axes
    true /= np.linalg.norm(true, axis=1, keepdims=True)
    assert (features[:, 3:] * true).sum(1).min() > 0.95
