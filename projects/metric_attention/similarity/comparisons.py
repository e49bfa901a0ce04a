"""Each composition beside an implementation that is not ours."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse.csgraph import laplacian
from sklearn.cluster import KMeans
from sklearn.datasets import load_wine
from sklearn.manifold import (
    TSNE,
    ClassicalMDS,
    Isomap,
    LocallyLinearEmbedding,
    SpectralEmbedding,
)
from sklearn.metrics import pairwise_distances
from sklearn.neighbors import KNeighborsClassifier, kneighbors_graph
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from torch import Tensor

from mmstepnet.propagation import metric_propagation
from projects.metric_attention.similarity.operators import (
    exponential_inflation,
    metric_similarity,
    normalize_rows,
)

from . import clustering, manifold, networks, references, supervised

NEIGHBOURS, SIGMA, PERPLEXITY, FUZZINESS = 10, 20.0, 30.0, 2.0
HEAT_TIME = 0.1
UMAP_A, UMAP_B = 1.577, 0.895
"""UMAP's curve for a least distance of 0.1, rounded."""

Pair = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Comparison:
    """A composition's result and what it is compared with.

    Attributes:
        method (str): Its name in the paper.
        what (str): What is compared.
        reference (str): What it is compared with.
        tolerance (float): Largest difference that the reference's own
            accuracy explains.
        compute (Callable): Our result and the reference's, of points (N, d)
            and their classes (N,).
    """

    method: str
    what: str
    reference: str
    tolerance: float
    compute: Callable[[Tensor, np.ndarray], Pair]

    def difference(self, x: Tensor, label: np.ndarray) -> float:
        """Largest difference, relative where the reference exceeds 1."""
        ours, wanted = self.compute(x, label)
        return float(np.max(np.abs(ours - wanted))) / max(
            1.0, float(np.max(np.abs(wanted))))


def wine() -> tuple[Tensor, np.ndarray]:
    """Standardised measurements of 178 wines, (178, 13), and their class."""
    x, label = load_wine(return_X_y=True)
    return torch.from_numpy(StandardScaler().fit_transform(x)), label


def aligned(ours: Tensor, wanted: np.ndarray) -> Pair:
    """Eigenvectors, whose sign means nothing."""
    return ours.numpy() * np.sign((ours.numpy() * wanted).sum(0)), wanted


def mds_distances(x: Tensor, label: np.ndarray) -> Pair:
    return manifold.mds(x).numpy(), -pairwise_distances(x.numpy())


def mds_points(x: Tensor, label: np.ndarray) -> Pair:
    return aligned(
        manifold.classical_scaling(manifold.mds(x), 2),
        ClassicalMDS(2).fit_transform(x.numpy()))


def isomap_distances(x: Tensor, label: np.ndarray) -> Pair:
    fitted = Isomap(n_neighbors=NEIGHBOURS).fit(x.numpy())
    return manifold.isomap(x, NEIGHBOURS).numpy(), -fitted.dist_matrix_


def isomap_points(x: Tensor, label: np.ndarray) -> Pair:
    return aligned(
        manifold.classical_scaling(manifold.isomap(x, NEIGHBOURS), 2),
        Isomap(n_neighbors=NEIGHBOURS,
               eigen_solver='dense').fit_transform(x.numpy()))


def lle_points(x: Tensor, label: np.ndarray) -> Pair:
    weights = manifold.locally_linear_embedding(x, NEIGHBOURS)
    return aligned(
        manifold.bottom_vectors(weights, 2),
        LocallyLinearEmbedding(
            n_neighbors=NEIGHBOURS, eigen_solver='dense').fit_transform(
                x.numpy()))


def spectral(x: Tensor) -> SpectralEmbedding:
    return SpectralEmbedding(
        affinity='rbf', gamma=1 / SIGMA, eigen_solver='arpack',
        random_state=0).fit(x.numpy())


def laplacian_kernel(x: Tensor, label: np.ndarray) -> Pair:
    return (manifold.laplacian_eigenmaps(x, SIGMA).numpy(),
            spectral(x).affinity_matrix_)


def laplacian_points(x: Tensor, label: np.ndarray) -> Pair:
    similarity = manifold.laplacian_eigenmaps(x, SIGMA)
    return aligned(
        manifold.laplacian_vectors(similarity, 2), spectral(x).embedding_)


def diffusion_markov(x: Tensor, label: np.ndarray) -> Pair:
    return (manifold.diffusion_map(x, SIGMA).numpy(),
            references.diffusion_map(x.numpy(), SIGMA))


def diffusion_distances(x: Tensor, label: np.ndarray) -> Pair:
    points = manifold.diffusion_coordinates(x, SIGMA, 2)
    markov = references.diffusion_map(x.numpy(), SIGMA)
    return (manifold.euclidean(points, points).numpy(),
            references.diffusion_distance(markov, 2))


def sne_similarity(x: Tensor, label: np.ndarray) -> Pair:
    sigma = manifold.perplexity_scales(x, PERPLEXITY)
    return (manifold.sne(x, sigma).numpy(),
            references.sne(x.numpy(), PERPLEXITY))


def tsne_divergence(x: Tensor, label: np.ndarray) -> Pair:
    """Kullback-Leibler divergence of t-SNE's P and Q where it stops."""
    fitted = TSNE(
        method='exact', perplexity=PERPLEXITY, random_state=0).fit(x.numpy())
    p = manifold.tsne(x, manifold.perplexity_scales(x, PERPLEXITY))
    q = manifold.tsne_embedded(torch.from_numpy(fitted.embedding_).double())
    other = p > 0
    divergence = (p[other] * (p[other] / q[other]).log()).sum()
    return divergence.numpy(), np.array(fitted.kl_divergence_)


def tsne_low(x: Tensor, label: np.ndarray) -> Pair:
    return (manifold.tsne_embedded(x[:, :2]).numpy(),
            references.tsne_embedded(x[:, :2].numpy()))


def umap_similarity(x: Tensor, label: np.ndarray) -> Pair:
    return (manifold.umap(x, NEIGHBOURS).numpy(),
            references.umap(x.numpy(), NEIGHBOURS))


def umap_low(x: Tensor, label: np.ndarray) -> Pair:
    return (manifold.umap_embedded(x[:, :2], UMAP_A, UMAP_B).numpy(),
            references.umap_embedded(x[:, :2].numpy(), UMAP_A, UMAP_B))


def fuzzy(power: float) -> Callable[[Tensor, np.ndarray], Pair]:
    def compute(x: Tensor, label: np.ndarray) -> Pair:
        start = x[::len(x) // 3][:3] + 0.1
        member, centres = clustering.fuzzy_c_means(
            x, start, FUZZINESS, 10, power)
        wanted = references.fuzzy_c_means(
            x.numpy(), start.numpy(), FUZZINESS, 10, power)
        return np.hstack([member, centres]), np.hstack(wanted)

    return compute


def k_means(x: Tensor, label: np.ndarray) -> Pair:
    start = x[::len(x) // 3][:3]
    fitted = KMeans(3, init=start.numpy(), n_init=1, tol=0).fit(x.numpy())
    centres = clustering.fuzzy_c_means(x, start, 1.001, fitted.n_iter_)[1]
    return centres.numpy(), fitted.cluster_centers_


def markov(x: Tensor, label: np.ndarray) -> Pair:
    # The graph of UMAP, with self-loops.
    graph = manifold.umap(x, NEIGHBOURS) + torch.eye(len(x), dtype=x.dtype)
    return (clustering.markov_clustering(graph, 5).numpy(),
            references.markov_clustering(graph.numpy(), 5))


def k_nearest(x: Tensor, label: np.ndarray) -> Pair:
    known, new = x[::2], x[1::2]
    one_hot = torch.nn.functional.one_hot(torch.from_numpy(label[::2]))
    s = supervised.k_nearest(known, new, 5)
    model = KNeighborsClassifier(5).fit(known.numpy(), label[::2])
    return ((s.T @ one_hot.to(s.dtype)).numpy(),
            model.predict_proba(new.numpy()))


def machine(kernel: str) -> Callable[[Tensor, np.ndarray], Pair]:
    def compute(x: Tensor, label: np.ndarray) -> Pair:
        known, new = x[::2], x[1::2]
        y = np.where(label[::2] == 1, 1.0, -1.0)
        model = SVC(kernel=kernel, gamma=1 / SIGMA).fit(known.numpy(), y)
        # scikit-learn keeps alpha times y, of the support vectors alone.
        alpha = np.zeros(len(y))
        alpha[model.support_] = np.abs(model.dual_coef_[0])
        values = (supervised.linear_kernel(known, new)
                  if kernel == 'linear' else supervised.gaussian_kernel(
                      known, new, SIGMA))
        s = supervised.support_vectors(values, torch.from_numpy(alpha))
        return (s.T.numpy() @ y + model.intercept_,
                model.decision_function(new.numpy()))

    return compute


def attention(x: Tensor, label: np.ndarray) -> Pair:
    """A propagation by L2 attention is N_r of Γ°_1 of D_{2,0}."""
    s = normalize_rows(exponential_inflation(
        metric_similarity(manifold.euclidean(x, x), 2), 1.0))
    return (s @ x).numpy(), metric_propagation(x, x, x, 1.0).numpy()



def neighbour_graph(x: Tensor) -> np.ndarray:
    """A_ij = 1 where one is among the other's nearest, (N, N)."""
    near = kneighbors_graph(x.numpy(), NEIGHBOURS).toarray()
    return np.maximum(near, near.T)


def convolution(x: Tensor, label: np.ndarray) -> Pair:
    graph = neighbour_graph(x)
    return (networks.graph_convolution(torch.from_numpy(graph)).numpy(),
            references.graph_convolution(graph))


def heat(x: Tensor, label: np.ndarray) -> Pair:
    matrix = laplacian(neighbour_graph(x))
    value, vector = np.linalg.eigh(matrix)
    return (networks.diffusion(torch.from_numpy(matrix), HEAT_TIME).numpy(),
            vector * np.exp(-HEAT_TIME * value) @ vector.T)


LOOPS = 'its formula, loops'
COMPARISONS = (
    Comparison('MDS', 'similarity', 'pairwise_distances', 1e-12,
               mds_distances),
    Comparison('MDS', 'classical scaling', 'ClassicalMDS', 1e-9, mds_points),
    Comparison('Isomap', 'similarity', 'Isomap', 1e-12, isomap_distances),
    Comparison('Isomap', 'embedding', 'Isomap', 1e-9, isomap_points),
    Comparison('LLE', 'embedding', 'LocallyLinearEmbedding', 1e-8,
               lle_points),
    Comparison('Laplacian eigenmaps', 'similarity', 'SpectralEmbedding',
               1e-12, laplacian_kernel),
    Comparison('Laplacian eigenmaps', 'embedding', 'SpectralEmbedding', 1e-8,
               laplacian_points),
    Comparison('Diffusion map', 'similarity', LOOPS, 1e-12,
               diffusion_markov),
    Comparison('Diffusion map', 'distances of the embedding',
               'diffusion distance, loops', 1e-9, diffusion_distances),
    Comparison('SNE', 'similarity', LOOPS, 1e-10, sne_similarity),
    # scikit-learn solves for the perplexity to 1e-5, in float32.
    Comparison('t-SNE', 'divergence of both similarities', 'TSNE', 1e-5,
               tsne_divergence),
    Comparison('t-SNE', 'similarity of the embedding', LOOPS, 1e-12,
               tsne_low),
    Comparison('UMAP', 'similarity', LOOPS, 1e-10, umap_similarity),
    Comparison('UMAP', 'similarity of the embedding', LOOPS, 1e-12,
               umap_low),
    Comparison('Fuzzy c-means', 'memberships and centres, as printed', LOOPS,
               1e-10, fuzzy(1.0)),
    Comparison('Fuzzy c-means', "memberships and centres, Bezdek's", LOOPS,
               1e-10, fuzzy(FUZZINESS)),
    Comparison('k-means (m = 1.001)', 'centres', 'KMeans', 1e-9, k_means),
    Comparison('Markov clustering', 'H after 5 steps', LOOPS, 1e-10,
               markov),
    Comparison('KNN', 'shares of the classes', 'KNeighborsClassifier', 1e-12,
               k_nearest),
    Comparison('SVM, linear', 'decision', 'SVC', 1e-10, machine('linear')),
    Comparison('SVM, Gaussian', 'decision', 'SVC', 1e-10, machine('rbf')),
    Comparison('Graph convolution', 'similarity', LOOPS, 1e-12, convolution),
    Comparison('DiffusionNet', 'similarity', 'numpy.linalg.eigh', 1e-12,
               heat),
    Comparison('L2 attention', 'propagation', 'metric_propagation', 1e-12,
               attention),
)
