"""Defining formulas of methods that scikit-learn lacks, in plain loops.

NumPy and SciPy alone, and nothing of the compositions: what these are
compared with.
"""

import math

import numpy as np
from scipy.optimize import brentq


def squared(x: np.ndarray, y: np.ndarray) -> float:
    """Squared distance of two points."""
    return float(sum((a - b)**2 for a, b in zip(x, y)))


def diffusion_map(x: np.ndarray, sigma: float) -> np.ndarray:
    """Coifman and Lafon (2006), alpha 1: (N, d) -> (N, N)."""
    count = len(x)
    kernel = np.array([[math.exp(-squared(a, b) / sigma) for b in x]
                       for a in x])
    density = [sum(kernel[i]) for i in range(count)]
    for i in range(count):
        for j in range(count):
            kernel[i, j] /= density[i] * density[j]
    for i in range(count):
        kernel[i] /= sum(kernel[i])
    return kernel


def diffusion_distance(markov: np.ndarray, time: int) -> np.ndarray:
    """Of rows after so many steps, weighed by the stationary measure."""
    power = np.linalg.matrix_power(markov, time)
    stationary = np.linalg.matrix_power(markov, 10000)[0]
    return np.array([[
        math.sqrt(sum((a - b)**2 / stationary)) for b in power
    ] for a in power])


def sne(x: np.ndarray, perplexity: float) -> np.ndarray:
    """Hinton and Roweis (2002), p_{j|i}: (N, d) -> (N, N)."""
    out = np.zeros((len(x), len(x)))
    for i, a in enumerate(x):
        apart = np.array([squared(a, b) for b in x])
        apart[i] = math.inf

        def row(log_variance, apart=apart):
            p = np.exp((apart.min() - apart) / (2 * math.exp(log_variance)))
            return p / p.sum()

        def excess(log_variance, row=row):
            return -sum(p * math.log2(p) for p in row(log_variance)
                        if p > 0) - math.log2(perplexity)

        out[i] = row(brentq(excess, -10, 20, xtol=1e-14))
    return out


def tsne_embedded(y: np.ndarray) -> np.ndarray:
    """Van der Maaten and Hinton (2008), q_ij: (N, d) -> (N, N)."""
    out = np.array([[1 / (1 + squared(a, b)) for b in y] for a in y])
    for i in range(len(y)):
        out[i, i] = 0
    return out / out.sum()


def umap(x: np.ndarray, k: int) -> np.ndarray:
    """Of McInnes et al. (2018), Algorithms 2 and 3: (N, d) -> (N, N)."""
    out = np.zeros((len(x), len(x)))
    for i, a in enumerate(x):
        apart = {j: math.sqrt(squared(a, b)) for j, b in enumerate(x)
                 if j != i}
        near = sorted(apart, key=apart.get)[:k]
        first = apart[near[0]]

        def total(log_sigma, apart=apart, near=near, first=first):
            return sum(
                math.exp(-(apart[j] - first) / math.exp(log_sigma))
                for j in near) - math.log2(k)

        sigma = math.exp(brentq(total, -30, 30, xtol=1e-14))
        for j in near:
            out[i, j] = math.exp(-max(0, apart[j] - first) / sigma)
    joined = np.zeros_like(out)
    for i in range(len(x)):
        for j in range(len(x)):  # probability of an edge either way
            joined[i, j] = 1 - (1 - out[i, j]) * (1 - out[j, i])
    return joined


def umap_embedded(y: np.ndarray, a: float, b: float) -> np.ndarray:
    """Of McInnes et al. (2018), Definition 11: (N, d) -> (N, N)."""
    return np.array([[1 / (1 + a * squared(p, q)**b) for q in y] for p in y])


def fuzzy_c_means(x: np.ndarray, centres: np.ndarray, m: float, steps: int,
                  weight: float) -> tuple[np.ndarray, np.ndarray]:
    """Bezdek et al. (1984); centres weigh memberships to a power."""
    for _ in range(steps):
        member = np.zeros((len(centres), len(x)))
        for i, centre in enumerate(centres):
            for j, point in enumerate(x):
                member[i, j] = 1 / sum(
                    (squared(point, centre) / squared(point, other))**
                    (1 / (m - 1)) for other in centres)
        centres = np.array([
            sum(u**weight * point for u, point in zip(row, x)) /
            sum(u**weight for u in row) for row in member
        ])
    return member, centres


def markov_clustering(h: np.ndarray, steps: int) -> np.ndarray:
    """Van Dongen (2008), with rows in the place of columns."""
    for _ in range(steps):
        expanded = h @ h
        out = np.zeros_like(h)
        for i in range(len(h)):
            for j in range(len(h)):
                out[i, j] = expanded[i, j]**2 / sum(expanded[i]**2)
        h = out
    return h


def graph_convolution(adjacency: np.ndarray) -> np.ndarray:
    """Of Kipf and Welling (2017), Eq. 2, (N, N)."""
    linked = adjacency + np.eye(len(adjacency))
    degree = [sum(row) for row in linked]
    out = np.zeros_like(linked)
    for i in range(len(linked)):
        for j in range(len(linked)):
            out[i, j] = linked[i, j] / math.sqrt(degree[i] * degree[j])
    return out
