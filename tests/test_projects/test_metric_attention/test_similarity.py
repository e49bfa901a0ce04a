"""Operators against loops, methods against programs that are not ours.

Where scikit-learn lacks a method, its defining formula stands here in loops.
"""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import brentq
from scipy.sparse.csgraph import laplacian
from sklearn.cluster import KMeans
from sklearn.manifold import (
    TSNE,
    ClassicalMDS,
    Isomap,
    LocallyLinearEmbedding,
    SpectralEmbedding,
)
from sklearn.metrics import pairwise_distances
from sklearn.neighbors import KNeighborsClassifier, kneighbors_graph
from sklearn.svm import SVC

from mmstepnet.propagation import metric_propagation
from projects.metric_attention import similarity as sim

K, SIGMA, PERPLEXITY = 10, 20.0, 12.0


def loops(m, entry):
    """entry(matrix, i, j) at every place of every matrix."""
    out = np.zeros(m.shape)
    for b, i, j in np.ndindex(*m.shape):
        out[b, i, j] = entry(m[b].numpy(), i, j)
    return out


SCALES = (0.5, 0.7, 1.1, 1.9, 2.5)
OPERATORS = {
    **{f'D_{t}': (lambda m, t=t: sim.metric_similarity(m, t, 0.7),
                  lambda d, i, j, t=t: 0.7 - np.sign(t) * d[i, j]**t)
       for t in (2, 1, 0.5, -1, -2.5)},
    'D_2,c(x)': (lambda m: sim.metric_similarity(m, 2, torch.tensor(
        SCALES).double()), lambda d, i, j: np.float32(SCALES[i]) - d[i, j]**2),
    **{f'inflation {r}': (lambda m, r=r: sim.inflation(m, r),
                          lambda a, i, j, r=r: np.sign(r) * a[i, j]**r)
       for r in (2, 0.5, -1, -0.5)},
    'exponential': (lambda m: sim.exponential_inflation(m, 0.5),
                    lambda a, i, j: math.exp(a[i, j] / 0.5)),
    'exponential, by row': (
        lambda m: sim.exponential_inflation(m, torch.tensor(SCALES).double()),
        lambda a, i, j: math.exp(a[i, j] / np.float32(SCALES[i]))),
    'rows': (sim.normalize_rows, lambda a, i, j: a[i, j] / a[i].sum()),
    'columns': (sim.normalize_columns,
                lambda a, i, j: a[i, j] / a[:, j].sum()),
    'two sides': (sim.normalize_two_sides,
                  lambda a, i, j: a[i, j] / (a[i].sum() * a[j].sum())),
    'global': (sim.normalize_globally, lambda a, i, j: a[i, j] / a.sum()),
    'walks': (lambda m: sim.adjacency_similarity(m, 3), lambda a, i, j: sum(
        a[i, k] * a[k, n] * a[n, j] for k in range(5) for n in range(5))),
}


@pytest.mark.parametrize('name', OPERATORS)
def test_operators_by_loops(name):
    operator, entry = OPERATORS[name]
    m = torch.rand(3, 5, 5, dtype=torch.float64) + 0.1
    np.testing.assert_allclose(operator(m), loops(m, entry), rtol=1e-12)


def test_similarities_that_cannot_be_normalised():
    for m in (torch.zeros(2, 2), torch.tensor([[1., math.inf], [1., 1.]])):
        with pytest.raises(ValueError, match='positive and finite'):
            sim.normalize_rows(m)


def test_local_combination_has_the_least_error():
    """No other weights that sum to 1 have a smaller penalised error."""
    x = torch.randn(8, 5, dtype=torch.float64)
    neighbours = torch.tensor([[j for j in range(8) if j != i][:4]
                               for i in range(8)])
    got = sim.local_combination(x, neighbours, 0.1)
    np.testing.assert_allclose(got.sum(1), 1)
    assert (got != 0).sum() == 8 * 4

    def loss(weight, i):
        apart = x[neighbours[i]] - x[i]
        penalty = 0.1 * apart.square().sum() * weight.square().sum()
        return (weight @ apart).square().sum() + penalty

    for i in range(8):
        best = got[i, neighbours[i]]
        for _ in range(20):
            move = torch.randn(4, dtype=torch.float64)
            move = 0.01 * (move - move.mean())
            assert loss(best + move, i) > loss(best, i)
    together = torch.zeros(3, 2, dtype=torch.float64)
    assert sim.local_combination(together, torch.tensor(
        [[1, 2], [0, 2], [0, 1]]))[0].tolist() == [0, 0.5, 0.5]


def test_attention_is_a_composition():
    x = torch.randn(2, 6, 3, dtype=torch.float64)
    query, key = torch.randn(2, 4, 3, dtype=torch.float64)
    got = sim.normalize_rows(sim.exponential_inflation(
        sim.qk_dot_product(x, x, query, key), 1.0)) @ x
    torch.testing.assert_close(got, F.scaled_dot_product_attention(
        x @ query.T, x @ key.T, x, scale=1.0))
    torch.testing.assert_close(
        sim.normalize_rows(sim.gaussian_kernel(x[0], x[0], 1.0)) @ x[0],
        metric_propagation(x[0], x[0], x[0]))


def squared(x, y):
    """Squared distance of two points."""
    return float(sum((a - b)**2 for a, b in zip(x, y)))


def diffusion_map(x):
    """Coifman and Lafon (2006), alpha 1."""
    kernel = np.array([[math.exp(-squared(a, b) / SIGMA) for b in x]
                       for a in x])
    kernel /= np.outer(kernel.sum(1), kernel.sum(1))
    return kernel / kernel.sum(1, keepdims=True)


def diffusion_distance(x, time):
    """Of rows after so many steps, weighed by the stationary measure."""
    power = np.linalg.matrix_power(diffusion_map(x), time)
    stationary = np.linalg.matrix_power(diffusion_map(x), 10000)[0]
    return np.array([[math.sqrt(sum((a - b)**2 / stationary)) for b in power]
                     for a in power])


def sne(x):
    """Hinton and Roweis (2002), p_{j|i}."""
    out = np.zeros((len(x), len(x)))
    for i, a in enumerate(x):
        apart = np.array([squared(a, b) for b in x])
        apart[i] = math.inf

        def row(log_variance, apart=apart):
            p = np.exp((apart.min() - apart) / (2 * math.exp(log_variance)))
            return p / p.sum()

        def excess(log_variance, row=row):
            return -sum(p * math.log2(p) for p in row(log_variance)
                        if p > 0) - math.log2(PERPLEXITY)

        out[i] = row(brentq(excess, -10, 20, xtol=1e-14))
    return out


def tsne_embedded(y):
    """Van der Maaten and Hinton (2008), q_ij."""
    out = np.array([[1 / (1 + squared(a, b)) for b in y] for a in y])
    np.fill_diagonal(out, 0)
    return out / out.sum()


def umap(x):
    """Of McInnes et al. (2018), Algorithms 2 and 3."""
    out = np.zeros((len(x), len(x)))
    for i, a in enumerate(x):
        apart = {j: math.sqrt(squared(a, b)) for j, b in enumerate(x)
                 if j != i}
        near = sorted(apart, key=apart.get)[:K]
        beyond = np.array([apart[j] - apart[near[0]] for j in near])
        log_sigma = brentq(lambda s, beyond=beyond: np.exp(
            -beyond / math.exp(s)).sum() - math.log2(K), -30, 30, xtol=1e-14)
        out[i, near] = np.exp(-beyond / math.exp(log_sigma))
    return 1 - (1 - out) * (1 - out.T)  # of an edge either way


def fuzzy_c_means(x, centres, steps, weight):
    """Bezdek et al. (1984) with m = 2; centres weigh memberships."""
    for _ in range(steps):
        member = np.array([[1 / sum(squared(p, c) / squared(p, other)
                                    for other in centres) for p in x]
                           for c in centres])
        centres = np.array([sum(u**weight * p for u, p in zip(row, x))
                            / sum(u**weight for u in row) for row in member])
    return member, centres


def markov_clustering(h, steps):
    """Van Dongen (2008), with rows in the place of columns."""
    for _ in range(steps):
        expanded = (h @ h)**2
        h = expanded / expanded.sum(1, keepdims=True)
    return h


def aligned(ours, wanted):
    """Eigenvectors, whose sign means nothing."""
    return ours.numpy() * np.sign((ours.numpy() * wanted).sum(0)), wanted


def spectral(x):
    return SpectralEmbedding(
        affinity='rbf', gamma=1 / SIGMA, eigen_solver='arpack',
        random_state=0).fit(x.numpy())


def tsne_divergence(x, label):
    """Kullback-Leibler divergence of t-SNE's P and Q where it stops."""
    fitted = TSNE(
        method='exact', perplexity=PERPLEXITY, random_state=0).fit(x.numpy())
    p = sim.tsne(x, sim.perplexity_scales(x, PERPLEXITY))
    q = sim.tsne_embedded(torch.from_numpy(fitted.embedding_).double())
    other = p > 0
    divergence = (p[other] * (p[other] / q[other]).log()).sum()
    return divergence.numpy(), np.array(fitted.kl_divergence_)


def fuzzy(power):
    def compute(x, label):
        start = x[::20] + 0.1
        return (np.hstack(sim.fuzzy_c_means(x, start, 2.0, 10, power)),
                np.hstack(fuzzy_c_means(
                    x.numpy(), start.numpy(), 10, power)))
    return compute


def k_means(x, label):
    fitted = KMeans(3, init=x[::20].numpy(), n_init=1, tol=0).fit(x.numpy())
    return (sim.fuzzy_c_means(x, x[::20], 1.001, fitted.n_iter_)[1].numpy(),
            fitted.cluster_centers_)


def markov(x, label):
    graph = sim.umap(x, K) + torch.eye(len(x), dtype=x.dtype)
    return (sim.markov_clustering(graph, 5).numpy(),
            markov_clustering(graph.numpy(), 5))


def k_nearest(x, label):
    known, new = x[::2], x[1::2]
    one_hot = F.one_hot(torch.from_numpy(label[::2])).double()
    model = KNeighborsClassifier(5).fit(known.numpy(), label[::2])
    return ((sim.k_nearest(known, new, 5).T @ one_hot).numpy(),
            model.predict_proba(new.numpy()))


def machine(kernel):
    def compute(x, label):
        known, new = x[::2], x[1::2]
        y = np.where(label[::2] == 1, 1.0, -1.0)
        model = SVC(kernel=kernel, gamma=1 / SIGMA).fit(known.numpy(), y)
        # scikit-learn keeps alpha times y, of the support vectors alone.
        alpha = np.zeros(len(y))
        alpha[model.support_] = np.abs(model.dual_coef_[0])
        eye = torch.eye(x.shape[1], dtype=x.dtype)
        values = (sim.qk_dot_product(known, new, eye, eye)
                  if kernel == 'linear' else sim.gaussian_kernel(
                      known, new, SIGMA))
        s = sim.support_vectors(values, torch.from_numpy(alpha))
        return (s.T.numpy() @ y + model.intercept_,
                model.decision_function(new.numpy()))
    return compute


def neighbour_graph(x):
    """A_ij = 1 where one is among the other's nearest, (N, N)."""
    near = kneighbors_graph(x.numpy(), K).toarray()
    return np.maximum(near, near.T)


def convolution(x, label):
    graph = neighbour_graph(x)
    linked = graph + np.eye(len(x))
    degree = linked.sum(1)**0.5
    return (sim.graph_convolution(torch.from_numpy(graph)).numpy(),
            linked / np.outer(degree, degree))


def heat(x, label):
    matrix = laplacian(neighbour_graph(x))
    value, vector = np.linalg.eigh(matrix)
    return (sim.diffusion(torch.from_numpy(matrix), 0.1).numpy(),
            vector * np.exp(-0.1 * value) @ vector.T)


COMPARISONS = {
    'MDS': (1e-12, lambda x, _: (
        sim.mds(x), -pairwise_distances(x.numpy()))),
    'classical scaling': (1e-9, lambda x, _: aligned(
        sim.classical_scaling(sim.mds(x), 2),
        ClassicalMDS(2).fit_transform(x.numpy()))),
    'Isomap': (1e-12, lambda x, _: (
        sim.isomap(x, 25), -Isomap(n_neighbors=25).fit(
            x.numpy()).dist_matrix_)),
    'Isomap, embedding': (1e-9, lambda x, _: aligned(
        sim.classical_scaling(sim.isomap(x, 25), 2), Isomap(
            n_neighbors=25, eigen_solver='dense').fit_transform(x.numpy()))),
    'LLE': (1e-8, lambda x, _: aligned(
        sim.bottom_vectors(sim.locally_linear_embedding(x, K), 2),
        LocallyLinearEmbedding(
            n_neighbors=K, eigen_solver='dense').fit_transform(x.numpy()))),
    'Laplacian eigenmaps': (1e-12, lambda x, _: (
        sim.gaussian_kernel(x, x, SIGMA), spectral(x).affinity_matrix_)),
    'Laplacian eigenmaps, embedding': (1e-8, lambda x, _: aligned(
        sim.laplacian_vectors(sim.gaussian_kernel(x, x, SIGMA), 2),
        spectral(x).embedding_)),
    'diffusion map': (1e-12, lambda x, _: (
        sim.diffusion_map(x, SIGMA), diffusion_map(x.numpy()))),
    'diffusion distances': (1e-9, lambda x, _: (
        sim.euclidean(*[sim.diffusion_coordinates(x, SIGMA, 2)] * 2),
        diffusion_distance(x.numpy(), 2))),
    'SNE': (1e-10, lambda x, _: (
        sim.sne(x, sim.perplexity_scales(x, PERPLEXITY)), sne(x.numpy()))),
    # scikit-learn solves for the perplexity to 1e-5, in float32.
    't-SNE, divergence': (1e-5, tsne_divergence),
    't-SNE, embedding': (1e-12, lambda x, _: (
        sim.tsne_embedded(x[:, :2]), tsne_embedded(x[:, :2].numpy()))),
    'UMAP': (1e-10, lambda x, _: (sim.umap(x, K), umap(x.numpy()))),
    'UMAP, embedding': (1e-12, lambda x, _: (
        sim.umap_embedded(x[:, :2], 1.577, 0.895), [[
            1 / (1 + 1.577 * squared(p, q)**0.895) for q in x[:, :2].numpy()]
            for p in x[:, :2].numpy()])),
    'fuzzy c-means, as printed': (1e-10, fuzzy(1.0)),
    "fuzzy c-means, Bezdek's": (1e-10, fuzzy(2.0)),
    'k-means': (1e-9, k_means),
    'Markov clustering': (1e-10, markov),
    'KNN': (1e-12, k_nearest),
    'SVM, linear': (1e-10, machine('linear')),
    'SVM, Gaussian': (1e-10, machine('rbf')),
    'graph convolution': (1e-12, convolution),
    'DiffusionNet': (1e-12, heat),
}


@pytest.mark.parametrize('name', COMPARISONS)
def test_methods_as_others_compute_them(name):
    """Of three groups of points in five dimensions."""
    tolerance, compute = COMPARISONS[name]
    generator = torch.Generator().manual_seed(0)
    label = np.repeat(np.arange(3), 20)
    centre = 2 * torch.randn(3, 5, generator=generator, dtype=torch.float64)
    noise = torch.randn(60, 5, generator=generator, dtype=torch.float64)
    ours, wanted = map(np.asarray, compute(centre[label] + noise, label))
    scale = max(1.0, np.abs(wanted).max())
    np.testing.assert_allclose(ours, wanted, rtol=0, atol=tolerance * scale)


def test_perplexity_out_of_reach():
    x = torch.randn(10, 2, dtype=torch.float64)
    with pytest.raises(ValueError, match='no scale of point 0'):
        sim.perplexity_scales(x, 10.0)


def test_clusters():
    x = torch.tensor([[0., 0.], [1., 0.], [4., 0.]], dtype=torch.float64)
    member = sim.memberships(x, x[[0, 2]], 2.0)
    np.testing.assert_allclose(member, [[1, 0.9, 0], [0, 0.1, 1]], atol=1e-9)
    graph = torch.eye(8, dtype=torch.float64)
    graph[:4, :4] = graph[4:, 4:] = 1
    graph[3, 4] = graph[4, 3] = 1  # a bridge of two cliques
    h = sim.markov_clustering(graph, 30)
    same = torch.cdist(h, h) < 1e-6
    assert same[:4, :4].all() and same[4:, 4:].all()
    assert not same[:4, 4:].any()
