"""The information propagation network and its heads."""

import numpy as np
import pytest
import torch
from mmengine.dataset import pseudo_collate
from mmpretrain.evaluation import Accuracy

from mmstepnet.models import build_propagation, neighbourhood
from projects.metric_attention.models import (
    FaceSegmentor,
    InformationPropagationNetwork,
    PointClassifier,
)
from tests.utils import perturb, seeded

SIMILARITIES = ('DotProductAttention', 'L2Attention', 'MetricAttention',
                'DotProduct', 'L2', 'Metric')
TETRAHEDRON = [[0, 1, 2], [0, 3, 1], [0, 2, 3], [1, 3, 2]]
OCTAHEDRON = [[0, 2, 4], [2, 1, 4], [1, 3, 4], [3, 0, 4], [2, 0, 5], [1, 2, 5],
              [3, 1, 5], [0, 3, 5]]


def settings(similarity, **kwargs):
    """An attention block, or the propagation alone."""
    propagation = (
        dict(type=similarity) if similarity.endswith('Attention') else
        dict(type='Propagation', pseudo_metric=dict(type=similarity)))
    return {
        **dict(in_channels=5, embed_dims=7, out_channels=3, depth=3,
               propagation=dict(propagation, eps=7**0.5)),
        **kwargs
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
    adjacent = np.eye(nodes, dtype=bool)
    adjacent[edges[:, 0], edges[:, 1]] = adjacent[edges[:, 1],
                                                  edges[:, 0]] = True
    return (torch.from_numpy(adjacent),
            neighbourhood(torch.from_numpy(edges), nodes))


@pytest.mark.parametrize('similarity', SIMILARITIES)
@pytest.mark.parametrize('on_graph', [False, True])
def test_network_is_its_parts_in_turn(similarity, on_graph):
    net, x = network(similarity), points(23)
    adjacent, mask = graph(23) if on_graph else (None, None)
    expected = part_by_part(net, x, adjacent)
    with torch.no_grad():
        for dense in (False, not on_graph):
            np.testing.assert_allclose(
                net(x, mask, dense=dense).numpy(), expected, rtol=0,
                atol=1e-10)
    # Neither form may pass for want of a difference between nodes.
    assert expected.std(0).min() > 1e-3


@pytest.mark.parametrize('similarity', SIMILARITIES)
def test_order_of_nodes_does_not_matter(similarity):
    net, x = network(similarity), points(17)
    order = torch.randperm(17, generator=torch.Generator().manual_seed(3))
    adjacent, mask = graph(17)
    permuted = adjacent[order][:, order].to_sparse_coo()
    with torch.no_grad():
        torch.testing.assert_close(net(x[order]), net(x)[order])
        torch.testing.assert_close(
            net(x[order], permuted), net(x, mask)[order])


def test_far_nodes_do_not_reach():
    """On a path of nodes k modules carry information k steps."""
    net, x = network('MetricAttention', depth=2), points(9) / 4
    path = torch.tensor([[i, i + 1] for i in range(8)])
    mask = neighbourhood(path, 9)
    changed = x.clone()
    changed[0] += 1
    with torch.no_grad():
        same = (net(x, mask) == net(changed, mask)).all(1)
    assert same.tolist() == [False] * 3 + [True] * 6


@pytest.mark.parametrize('similarity', SIMILARITIES)
def test_classifier(similarity):
    model = perturb(PointClassifier(settings(similarity))).double()
    x, labels = points(30), torch.arange(30) % 3
    logits = part_by_part(model.network, x)
    exp = np.exp(logits - logits.max(1, keepdims=True))
    scores = exp / exp.sum(1, keepdims=True)
    loss = model(x, labels, mode='loss')['loss'].item()
    np.testing.assert_allclose(
        loss, -np.log(scores[np.arange(30), labels.numpy()]).mean())
    predicted = model(x, labels, mode='predict')
    metric = Accuracy()
    metric.process(None, predicted)
    right = (scores.argmax(1) == labels.numpy()).mean()
    assert metric.evaluate(30)['accuracy/top1'] == pytest.approx(100 * right)
    assert 0 < right < 1
    # Points of a batch inform each other.
    alone = model(x[:10])
    assert not torch.allclose(alone, model(x)[:10])


def mesh(faces, seed):
    faces = torch.tensor(faces)
    nodes = int(faces.max()) + 1
    edges = torch.cat([faces[:, :2], faces[:, 1:], faces[:, ::2]])
    return dict(
        inputs=points(nodes, seed),
        neighbours=neighbourhood(edges, nodes).indices(), faces=faces,
        labels=torch.arange(len(faces)) % 3)


@pytest.mark.parametrize('similarity', SIMILARITIES)
def test_batch_of_meshes_is_mesh_by_mesh(similarity):
    model = perturb(FaceSegmentor(settings(similarity))).double()
    meshes = [mesh(TETRAHEDRON, 1), mesh(OCTAHEDRON, 2), mesh(TETRAHEDRON, 3)]

    def batch(chosen):
        return model.data_preprocessor(pseudo_collate(chosen))

    together = batch(meshes)
    alone = [model(**batch([m])) for m in meshes]
    torch.testing.assert_close(model(**together), torch.cat(alone))
    # A vertex sees its neighbours, a face its three vertices.
    adjacent = torch.zeros(6, 6, dtype=torch.bool)
    adjacent[tuple(meshes[1]['neighbours'])] = True
    nodes = part_by_part(model.network, meshes[1]['inputs'], adjacent)
    faces = nodes[meshes[1]['faces'].numpy()].mean(1)
    np.testing.assert_allclose(alone[1].detach().numpy(), faces, atol=1e-10)

    loss = model(**together, mode='loss')['loss']
    losses = [model(**batch([m]), mode='loss')['loss'] for m in meshes]
    weights = [4 / 16, 8 / 16, 4 / 16]
    torch.testing.assert_close(
        loss, sum(w * one for w, one in zip(weights, losses)))
    predicted = model(**together, mode='predict')
    assert [len(p['pred_label']) for p in predicted] == [4, 8, 4]
    metric = Accuracy()
    metric.process(None, predicted)
    right = torch.cat(alone).argmax(1) == together['labels']
    assert metric.evaluate(3)['accuracy/top1'] == pytest.approx(
        100 * right.double().mean().item())


def test_mesh_with_isolated_vertex_is_refused():
    model = FaceSegmentor(settings('L2Attention'))
    sample = mesh(TETRAHEDRON, 0)
    sample['inputs'] = torch.cat([sample['inputs'], points(1)]).float()
    with pytest.raises(ValueError, match='node 4 has no neighbour'):
        model(**model.data_preprocessor(pseudo_collate([sample])))


@pytest.mark.parametrize('change, error, match', [
    (dict(depth=0), ValueError, 'depth must be a positive integer, got 0'),
    (dict(embed_dims=2.5), ValueError, 'embed_dims'),
    (dict(propagation=dict(type='Metric')), KeyError, 'MetricAttention'),
    (dict(propagation='MetricAttention'), TypeError, 'dict with'),
    (dict(propagation=dict(type='L2Attention', embed_dims=9)), TypeError,
     'embed_dims .* set by the network'),
])
def test_bad_settings(change, error, match):
    with pytest.raises(error, match=match):
        InformationPropagationNetwork(**settings('L2Attention', **change))


@pytest.mark.parametrize('shape', [(0, 5), (4, 6), (5, )])
def test_bad_batches(shape):
    model = PointClassifier(settings('MetricAttention'))
    with pytest.raises(ValueError, match='5.*got'):
        model(torch.zeros(shape))


def test_unknown_mode():
    model = PointClassifier(settings('MetricAttention'))
    with pytest.raises(ValueError, match="'predict', got 'train'"):
        model(points(3).float(), mode='train')


def test_scoped_name():
    built = build_propagation(dict(type='mmstepnet.L2Attention', eps=3.0), 4)
    assert built.eps == 3.0 and built.embed_dims == 4
