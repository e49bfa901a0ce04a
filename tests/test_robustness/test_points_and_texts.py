"""Damaged data of the second paper."""

import gzip
import shutil
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from projects.metric_attention.datasets import (
    HumanSegmentation,
    MNISTPoints,
    load_mesh,
)
from projects.metric_attention.datasets.multi30k import Multi30k
from tests.test_robustness.inputs import (
    BOUNDED,
    refused,
)
from tests.test_robustness.test_data import (
    cut,
)


def idx(array):
    magic = struct.pack('>HBB', 0, 8, array.ndim)
    return magic + struct.pack(f'>{array.ndim}i', *array.shape) + (
        array.tobytes())


@settings(BOUNDED, max_examples=40)
@given(data=st.data())
def test_mnist(tmp_path_factory, data):
    root = tmp_path_factory.mktemp('mnist')
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (6, 5, 5), dtype=np.uint8)
    files = {'train-images-idx3-ubyte': idx(images),
             'train-labels-idx1-ubyte': idx(np.arange(6, dtype=np.uint8))}
    suffix = data.draw(st.sampled_from(['', '.gz']))
    for name, content in files.items():
        (root / f'{name}{suffix}').write_bytes(
            gzip.compress(content, mtime=0) if suffix else content)
    path = root / f'{data.draw(st.sampled_from(sorted(files)))}{suffix}'
    cut(path, data)
    try:
        points = MNISTPoints(str(root))
    except ValueError as error:
        assert path.name in str(error) or 'MNISTPoints: ' in str(error)
    else:  # a pixel or label that may be
        assert len(points) == 6 and points.features.shape == (6, 25)
        assert points.labels.max() < 10


@pytest.fixture(scope='module')
def tetrahedron(tmp_path_factory):
    root = tmp_path_factory.mktemp('mesh')
    np.savez(root / 'a.npz', vertices=np.eye(4, 3),
             faces=np.array([[0, 1, 2], [0, 3, 1], [0, 2, 3], [1, 3, 2]]),
             labels=np.array([1, 2, 3, 8]))
    return (root / 'a.npz').read_bytes()


@settings(BOUNDED, max_examples=40)
@given(data=st.data())
def test_meshes(tmp_path_factory, tetrahedron, data):
    path = tmp_path_factory.mktemp('mesh') / 'train' / 'a.npz'
    path.parent.mkdir()
    path.write_bytes(tetrahedron)
    cut(path, data)
    try:
        mesh = load_mesh(path)
    except ValueError as error:
        assert str(path) in str(error)
        refused('', lambda: HumanSegmentation(str(path.parents[1])))
    else:
        assert np.isfinite(mesh.vertices).all()
        assert mesh.labels.min() >= 0 and mesh.labels.max() < 8


@settings(BOUNDED, max_examples=40)
@given(data=st.data())
def test_labels_of_meshes(tmp_path_factory, tetrahedron, data):
    folder = tmp_path_factory.mktemp('labels')
    (folder / 'a.npz').write_bytes(tetrahedron)
    labels = folder / 'a.txt'
    labels.write_text('1\n2\n3\n8\n')
    cut(labels, data)
    try:
        mesh = load_mesh(folder / 'a.npz', labels)
    except ValueError as error:
        assert str(labels) in str(error)
    else:
        assert mesh.labels.min() >= 0 and mesh.labels.max() < 8


@pytest.fixture(scope='module')
def multi30k(tmp_path_factory):
    """Sentences, plain and compressed, with the tokenizer learned of them."""
    root = tmp_path_factory.mktemp('multi30k')
    for suffix in ('plain', 'gz'):
        folder = root / suffix / 'data' / 'task1' / 'raw'
        folder.mkdir(parents=True)
        for language in ('en', 'de'):
            text = ''.join(f'{language} a{i} b{i * i}\n' for i in range(9))
            path = folder / f'train.{language}'
            if suffix == 'gz':
                path = path.with_name(f'{path.name}.gz')
                path.write_bytes(gzip.compress(text.encode(), mtime=0))
            else:
                path.write_text(text)
        Multi30k(data_root=str(root / suffix), vocab_size=270)
    return root


@settings(BOUNDED, max_examples=40)
@given(data=st.data())
def test_multi30k(tmp_path_factory, multi30k, data):
    source = multi30k / data.draw(st.sampled_from(['plain', 'gz']))
    root = tmp_path_factory.mktemp('damaged') / 'root'
    shutil.copytree(source, root)
    path = data.draw(st.sampled_from(sorted(
        path for path in root.rglob('*') if path.is_file())))
    cut(path, data)
    try:
        dataset = Multi30k(data_root=str(root), vocab_size=270,
                           serialize_data=False)
    except ValueError as error:
        # Other text may yield no such vocabulary, or fewer lines.
        assert path.name in str(error) or 'vocab_size' in str(error)
    else:
        for sample in dataset:
            assert max(map(max, (sample['source'], sample['target']))) < 270
