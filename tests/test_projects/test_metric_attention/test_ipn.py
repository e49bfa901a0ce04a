"""The information propagation network, on points and on meshes."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from mmengine.dataset import pseudo_collate
from mmpretrain.evaluation import Accuracy

from mmstepnet.propagation import neighbourhood
from projects.metric_attention.models import (
    FaceSegmentor,
    InformationPropagationNetwork,
    PointClassifier,
)
from tests.utils import OCTAHEDRON, perturb, seeded

SIMILARITIES = (
    'DotProductAttention',
    'L2Attention',
    'MetricAttention',
    'DotProduct',
    'L2',
    'Metric',
)
TETRAHEDRON = [[0, 1, 2], [0, 3, 1], [0, 2, 3], [1, 3, 2]]


def settings(similarity, **kwargs):
    """An attention block, or the propagation alone."""
    propagation = (
        dict(type=similarity)
        if similarity.endswith('Attention')
        else dict(type='Propagation', pseudo_metric=dict(type=similarity))
    )
    return {
        **dict(
            in_channels=5,
            embed_dims=7,
            out_channels=3,
            depth=3,
            propagation=dict(propagation, eps=7**0.5),
        ),
        **kwargs,
    }


def network(similarity, **kwargs):
    net = InformationPropagationNetwork(**settings(similarity, **kwargs))
    return perturb(net).double()


def points(count, seed=0):
    # Far enough apart for similarities to differ: deep propagation clusters.
    return 4 * seeded(count, 5, seed=seed).double() + 0.5


@torch.no_grad()
def part_by_part(net, x, adjacent=None):
    """In the N x N form, whose rows test_propagation writes out."""
    x = net.embed(x)
    for propagation in net.propagations:
        x = propagation(x, mask=adjacent, dense=True)
    return net.head(x).numpy()


def graph(nodes, seed=0):
    rng = np.random.default_rng(seed)
    edges = np.unique(rng.integers(0, nodes, (2 * nodes, 2)), axis=0)
    mask = neighbourhood(torch.from_numpy(edges), nodes)
    return mask.to_dense(), mask


@torch.no_grad()
@pytest.mark.parametrize('similarity', SIMILARITIES)
@pytest.mark.parametrize('on_graph', [False, True])
def test_network_is_its_parts_in_turn(similarity, on_graph):
    net, x = network(similarity), points(23)
    adjacent, mask = graph(23) if on_graph else (None, None)
    expected = part_by_part(net, x, adjacent)
    for dense in (False, not on_graph):
        np.testing.assert_allclose(
            net(x, mask, dense=dense).numpy(), expected, rtol=0, atol=1e-10
        )
    # Neither form may pass for want of a difference between nodes.
    assert expected.std(0).min() > 1e-3
    order = torch.randperm(23, generator=torch.Generator().manual_seed(3))
    permuted = (
        None if adjacent is None else adjacent[order][:, order].to_sparse_coo()
    )
    torch.testing.assert_close(net(x[order], permuted), net(x, mask)[order])


@pytest.mark.parametrize('similarity', SIMILARITIES)
def test_classifier(similarity):
    model = perturb(PointClassifier(settings(similarity))).double()
    x, labels = points(30), torch.arange(30) % 3
    logits = torch.from_numpy(part_by_part(model.network, x))
    torch.testing.assert_close(
        model(x, labels, mode='loss')['loss'], F.cross_entropy(logits, labels)
    )
    found = torch.stack([one['pred_score'] for one in model(x, labels)])
    torch.testing.assert_close(found, logits.softmax(1))


def mesh(faces, seed):
    faces = torch.as_tensor(faces)
    nodes = int(faces.max()) + 1
    edges = torch.cat([faces[:, :2], faces[:, 1:], faces[:, ::2]])
    return dict(
        inputs=points(nodes, seed),
        neighbours=neighbourhood(edges, nodes).indices(),
        faces=faces,
        labels=torch.arange(len(faces)) % 3,
    )


@torch.no_grad()
@pytest.mark.parametrize('similarity', SIMILARITIES)
def test_batch_of_meshes_is_mesh_by_mesh(similarity):
    model = perturb(FaceSegmentor(settings(similarity))).double()
    meshes = [mesh(TETRAHEDRON, 1), mesh(OCTAHEDRON, 2), mesh(TETRAHEDRON, 3)]
    together = model.data_preprocessor(pseudo_collate(meshes))
    losses, predicted = [], []
    for one in meshes:
        nodes = len(one['inputs'])
        adjacent = torch.zeros(nodes, nodes, dtype=torch.bool)
        adjacent[tuple(one['neighbours'])] = True
        # A vertex sees its neighbours, a face its three vertices.
        logits = part_by_part(model.network, one['inputs'], adjacent)
        logits = torch.from_numpy(logits[one['faces'].numpy()].mean(1))
        losses.append(F.cross_entropy(logits, one['labels'], reduction='none'))
        predicted.append(logits.argmax(1))
    torch.testing.assert_close(
        model(**together, mode='loss')['loss'], torch.cat(losses).mean()
    )
    found = model(**together)
    assert all(
        torch.equal(f['pred_label'], p)
        for f, p in zip(found, predicted, strict=True)
    )
    metric = Accuracy()
    metric.process(None, found)
    right = torch.cat(predicted) == together['labels']
    assert metric.evaluate(3)['accuracy/top1'] == pytest.approx(
        100 * right.double().mean().item()
    )
