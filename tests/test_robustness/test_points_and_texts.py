"""Damaged data of the second paper."""

import shutil

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
from tests.test_projects.test_metric_attention.test_meshes import save
from tests.test_projects.test_metric_attention.test_multi30k import write
from tests.test_projects.test_metric_attention.test_points import write_mnist
from tests.test_robustness.inputs import BOUNDED, refused
from tests.test_robustness.test_data import cut


@settings(BOUNDED, max_examples=40)
@given(data=st.data())
def test_mnist(tmp_path_factory, data):
    root = tmp_path_factory.mktemp('mnist')
    suffix = data.draw(st.sampled_from(['', '.gz']))
    write_mnist(root, suffix)
    path = data.draw(st.sampled_from(sorted(root.iterdir())))
    cut(path, data)
    try:
        points = MNISTPoints(str(root))
    except ValueError as error:
        assert path.name in str(error) or 'MNISTPoints: ' in str(error)
    else:  # a pixel or label that may be
        assert points.features.shape == (3, 784)
        assert points.labels.max() < 10


@pytest.fixture(scope='module')
def tetrahedron(tmp_path_factory):
    return save(tmp_path_factory.mktemp('mesh')).read_bytes()


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
    texts = [[f'{language} a{i} b{i * i}' for i in range(9)]
             for language in ('en', 'de')]
    for suffix in ('plain', 'gz'):
        write(root / suffix, 'train', *texts, compress=suffix == 'gz')
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
