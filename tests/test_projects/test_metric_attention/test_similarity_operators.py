"""The operators of similarity computation, against plain loops."""

import math

import numpy as np
import pytest
import torch

from projects.metric_attention.similarity import operators

INF = math.inf


@pytest.fixture(name='m')
def matrix():
    return torch.rand(3, 5, 5, dtype=torch.float64) + 0.1


def loops(m, entry):
    """entry(matrix, i, j) at every place of every matrix."""
    out = np.zeros(m.shape)
    for b, one in enumerate(m.numpy()):
        for i in range(one.shape[0]):
            for j in range(one.shape[1]):
                out[b, i, j] = entry(one, i, j)
    return out


def equal(got, wanted):
    np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-12, atol=0)


@pytest.mark.parametrize('t', [2, 1, 0.5, -1, -2.5])
def test_metric_similarity(m, t):
    sign = 1 if t > 0 else -1
    equal(operators.metric_similarity(m, t, 0.7),
          loops(m, lambda d, i, j: 0.7 - sign * d[i, j]**t))
    c = torch.rand(3, 5, dtype=torch.float64)
    shifted = operators.metric_similarity(m, t, c)
    equal(shifted - operators.metric_similarity(m, t),
          c[..., None].expand_as(m))
    # Ascending in closeness, whatever the power.
    near = operators.metric_similarity(0.5 * m, t)
    assert (near > operators.metric_similarity(m, t)).all()


def test_no_path_is_no_similarity():
    apart = torch.tensor([[0., INF]])
    similarity = operators.metric_similarity(apart, 1)
    assert similarity.tolist() == [[0, -INF]]
    assert operators.exponential_inflation(similarity,
                                           1.0).tolist() == [[1, 0]]
    far = operators.metric_similarity(torch.tensor([[INF, 2.]]), -1)
    assert far.tolist() == [[0, 0.5]]


def test_qk_dot_product():
    x, y = torch.randn(2, 4, 3), torch.randn(2, 6, 2)
    query, key = torch.randn(5, 3), torch.randn(5, 2)
    x, y, query, key = (t.double() for t in (x, y, query, key))
    got = operators.qk_dot_product(x, y, query, key)
    for b in range(2):
        for i in range(4):
            for j in range(6):
                wanted = x[b, i] @ query.T @ key @ y[b, j]
                assert got[b, i, j] == pytest.approx(wanted.item())


def test_local_combination_is_exact_where_it_can_be():
    """Points of a plane, as combinations of three neighbours in it."""
    x = torch.tensor([[0.2, 0.3], [0, 0], [1, 0], [0, 1]],
                     dtype=torch.float64)
    x = x @ torch.randn(2, 4, dtype=torch.float64)
    neighbours = torch.tensor([[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]])
    got = operators.local_combination(x, neighbours, 1e-12)
    np.testing.assert_allclose(got[0], [0, 0.5, 0.2, 0.3], atol=1e-8)
    np.testing.assert_allclose(got @ x, x, atol=1e-8)
    assert (got.diagonal() == 0).all()


def test_local_combination_has_the_least_error():
    """No other weights that sum to 1 have a smaller penalised error."""
    x = torch.randn(8, 5, dtype=torch.float64)
    neighbours = torch.tensor([[j for j in range(8) if j != i][:4]
                               for i in range(8)])
    got = operators.local_combination(x, neighbours, 0.1)
    np.testing.assert_allclose(got.sum(1), 1)

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
    assert (got != 0).sum() == 8 * 4


def test_coinciding_neighbours_share():
    x = torch.zeros(4, 2, dtype=torch.float64)
    neighbours = torch.tensor([[1, 2], [0, 2], [0, 1], [0, 1]])
    got = operators.local_combination(x, neighbours)
    assert got[0].tolist() == [0, 0.5, 0.5, 0]


@pytest.mark.parametrize('k', [1, 2, 3])
def test_adjacency_counts_walks(k):
    adjacency = torch.tensor([[0, 1, 0, 0], [1, 0, 1, 1], [0, 1, 0, 1],
                              [0, 1, 1, 0]]).double()

    def walks(i, j, length):
        if length == 0:
            return int(i == j)
        return sum(walks(via, j, length - 1) for via in range(4)
                   if adjacency[i, via])

    got = operators.adjacency_similarity(adjacency, k)
    assert got.tolist() == [[walks(i, j, k) for j in range(4)]
                            for i in range(4)]


@pytest.mark.parametrize('r', [2, 0.5, -1, -0.5])
def test_inflation(m, r):
    sign = 1 if r > 0 else -1
    equal(operators.inflation(m, r),
          loops(m, lambda a, i, j: sign * a[i, j]**r))
    assert (operators.inflation(1.1 * m, r) > operators.inflation(m, r)).all()


def test_inflation_of_negative_similarities():
    """t-SNE's: Γ_{-1} of D_{2,-1} is Student's kernel."""
    distance = torch.tensor([[0., 1., 2.]])
    student = operators.inflation(
        operators.metric_similarity(distance, 2, -1.0), -1)
    assert student.tolist() == [[1, 0.5, pytest.approx(0.2)]]


def test_exponential_inflation(m):
    sigma = torch.rand(3, 5, dtype=torch.float64) + 0.5
    for b in range(3):
        s = sigma[b].numpy()
        equal(operators.exponential_inflation(m, sigma)[b:b + 1],
              loops(m[b:b + 1],
                    lambda a, i, j, s=s: math.exp(a[i, j] / s[i])))
    equal(operators.exponential_inflation(m, 0.5), np.exp(2 * m.numpy()))


def test_normalizations(m):
    equal(operators.normalize_rows(m),
          loops(m, lambda a, i, j: a[i, j] / a[i].sum()))
    equal(operators.normalize_columns(m),
          loops(m, lambda a, i, j: a[i, j] / a[:, j].sum()))
    equal(operators.normalize_two_sides(m),
          loops(m, lambda a, i, j: a[i, j] / (a[i].sum() * a[j].sum())))
    equal(operators.normalize_globally(m),
          loops(m, lambda a, i, j: a[i, j] / a.sum()))


def test_attention_is_a_composition():
    x = torch.randn(2, 6, 3, dtype=torch.float64)
    query, key = torch.randn(2, 4, 3, dtype=torch.float64)
    similarity = operators.normalize_rows(
        operators.exponential_inflation(
            operators.qk_dot_product(x, x, query, key), 1.0))
    value = similarity @ x
    torch.testing.assert_close(
        value,
        torch.nn.functional.scaled_dot_product_attention(
            x @ query.T, x @ key.T, x, scale=1.0))


def test_gradients(m):
    m = m[0].requires_grad_()

    def composed(m):
        m = operators.metric_similarity(m, -1, m.diagonal())
        m = operators.exponential_inflation(m, m.diagonal().square())
        return operators.normalize_two_sides(operators.inflation(m, 2))

    assert torch.autograd.gradcheck(composed, m)


EYE = torch.eye(3)
BAD = {
    'negative distance': (operators.metric_similarity, (-EYE, 1),
                          r'distance is -1 at \(0, 0\)'),
    'infinite': (operators.metric_similarity, (EYE, -1),
                 r'is 0 at \(0, 1\): 0 to the power t=-1'),
    'c': (operators.metric_similarity, (EYE, 1, torch.ones(2)),
          r'c must be a number or one a row, \(3,\), got \(2,\)'),
    'integers': (operators.inflation, (EYE.long(), 2), r'call m.double\(\)'),
    'query': (operators.qk_dot_product, (EYE, EYE, torch.ones(2, 4), EYE),
              r'query must be \(k, d\).* got \(2, 4\)'),
    'own neighbour': (operators.local_combination,
                      (EYE, torch.tensor([[1], [1], [0]])),
                      r'neighbours is 1 at \(1, 0\)'),
    'order': (operators.adjacency_similarity, (EYE, 0),
              'positive integer, got 0'),
    'root': (operators.inflation, (-EYE, 0.5), 'r=0.5 is not a finite'),
    'sigmas': (operators.exponential_inflation,
               (EYE, torch.tensor([1., -2., 3.])), 'got -2'),
    'overflow': (operators.exponential_inflation, (1000 * EYE, 1.0),
                 'subtract the largest of each row'),
    'zeros': (operators.normalize_columns, (EYE[:, :2] * 0, ),
              'similarities of that column are 0'),
    'two sides': (operators.normalize_two_sides, (EYE[:2], ), 'N, N'),
}


def test_sums_that_half_precision_cannot_hold():
    """300 x 300 ones sum to 90,000; float16 ends at 65,504."""
    ones = torch.ones(300, 300, dtype=torch.float16)
    for normalize, sums in ((operators.normalize_rows, 300),
                            (operators.normalize_two_sides, 300**2),
                            (operators.normalize_globally, 300**2)):
        out = normalize(ones)
        assert out.dtype == torch.float16
        torch.testing.assert_close(
            out, torch.full_like(ones, 1 / sums), rtol=1e-2, atol=0)
    with pytest.raises(ValueError, match='more than torch.float32 holds'):
        operators.normalize_rows(torch.full((1, 4), 1e38))


@pytest.mark.parametrize('name', BAD)
def test_bad_input(name):
    function, arguments, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        function(*arguments)
