"""Classical methods as compositions, against implementations not ours."""

import numpy as np
import pytest
import torch

from projects.metric_attention.similarity import (
    clustering,
    manifold,
    supervised,
)
from projects.metric_attention.similarity.comparisons import (
    COMPARISONS,
    Comparison,
)


@pytest.fixture(scope='module')
def blobs():
    """Other points than the table's: three groups in five dimensions."""
    generator = torch.Generator().manual_seed(0)
    label = np.repeat(np.arange(3), 20)
    centre = 2 * torch.randn(3, 5, generator=generator, dtype=torch.float64)
    noise = torch.randn(60, 5, generator=generator, dtype=torch.float64)
    return centre[label] + noise, label


@pytest.mark.parametrize(
    'comparison', COMPARISONS, ids=lambda c: f'{c.method}: {c.what}')
def test_same_as_the_reference(comparison, blobs):
    assert comparison.difference(*blobs) < comparison.tolerance


def test_differences_are_seen(blobs):
    comparison = Comparison(
        '', '', '', 0, lambda x, label: (np.zeros(2), np.array([1.0, -4.0])))
    assert comparison.difference(*blobs) == 1


def test_graph_without_a_path():
    x = torch.tensor([[0.], [1.], [2.], [50.], [51.], [53.]])
    path = manifold.graph_distance(x.double(), 1)
    assert path[0].tolist() == [0, 1, 2] + [torch.inf] * 3
    assert path[3, 5] == 3


def test_perplexity(blobs):
    x, _ = blobs
    p = manifold.sne(x, manifold.perplexity_scales(x, 12.0))
    entropy = torch.special.entr(p).sum(1)
    torch.testing.assert_close(entropy.exp(), torch.full_like(entropy, 12))


@pytest.mark.parametrize('perplexity', [60.0, 0.5])
def test_perplexity_out_of_reach(blobs, perplexity):
    with pytest.raises(ValueError, match='no scale of point 0'):
        manifold.perplexity_scales(blobs[0], perplexity)


def test_point_on_a_centre_is_its_own():
    x = torch.tensor([[0., 0.], [1., 0.], [4., 0.]], dtype=torch.float64)
    for m in (1.001, 2.0):
        member = clustering.memberships(x, x[[0, 2]], m)
        assert member[:, 0].tolist() == pytest.approx([1, 0])
        assert member[:, 2].tolist() == pytest.approx([0, 1])
    assert member[:, 1].tolist() == pytest.approx([0.9, 0.1])


def test_fuzzy_c_means_ends_in_k_means(blobs):
    """Memberships become certain as m nears 1."""
    x, _ = blobs
    spread = [
        float(clustering.memberships(x, x[[0, 20, 40]] + 0.1, m).amax(
            0).mean()) for m in (4, 2, 1.2, 1.001)
    ]
    assert spread == sorted(spread) and spread[0] < 0.6 < 0.99 < spread[-1]


def test_markov_clustering_finds_cliques():
    graph = torch.eye(8, dtype=torch.float64)
    graph[:4, :4] = graph[4:, 4:] = 1
    graph[3, 4] = graph[4, 3] = 1  # a bridge
    h = clustering.markov_clustering(graph, 30)
    same = torch.cdist(h, h) < 1e-6
    assert same[:4, :4].all() and same[4:, 4:].all()
    assert not same[:4, 4:].any()


def test_support_vector_machine_separates():
    x = torch.tensor([[-2., 0.], [-1., 0.], [1., 0.], [3., 0.]]).double()
    y = torch.tensor([-1., -1., 1., 1.]).double()
    # The margin runs from -1 to 1: w = 1, b = 0, alpha = 1/2 each.
    s = supervised.support_vectors(
        supervised.linear_kernel(x, x), torch.tensor([0, .5, .5, 0]).double())
    assert (s.T @ y).tolist() == [-2, -1, 1, 3]
