import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mmstepnet.stiffness import (
    block_stiffness,
    degree_axes,
    stiffness_occurrence,
    stiffness_proportion,
    total_neural_stiffness,
    total_stiffness_proportion,
)

BOTH_MEANS = pytest.mark.parametrize('mu', ['stage', 'all'])


def thresholds(nsi, stages, mu='stage'):
    """μ of each sample and block, by the definitions."""
    mean = np.zeros_like(nsi)
    if mu == 'all':  # Eq. 15
        for sample in range(len(nsi)):
            mean[sample] = sum(nsi[sample]) / nsi.shape[1]
        return mean
    for s in np.unique(stages):
        mean[:, stages == s] = nsi[:, stages == s].mean(1, keepdims=True)
    return mean


def stiff(nsi, stages, m1, m2, mu='stage'):
    """Eq. 5's condition, literally, for one degree (M1, M2); (N, L)."""
    return nsi >= np.maximum(thresholds(nsi, stages, mu) * (1 + m1), m2)


def sweep(nsi, stages, mu='stage'):
    """TNS by sort and sweep over all blocks, (N,).

    The union of the rectangles [0, a_t] x [0, ζ_t] over all blocks is the
    integral over M1 of the largest ζ among blocks with a_t >= M1.
    """
    areas = []
    for row, mean in zip(nsi, thresholds(nsi, stages, mu)):
        moving = mean > 0
        a = row[moving] / mean[moving] - 1
        edges = np.unique(np.concatenate([[0], a[a > 0]]))
        area = 0.0
        for left, right in zip(edges[:-1], edges[1:]):
            area += (right - left) * row[moving][a >= right].max()
        areas.append(area)
    return np.array(areas)


def trajectories(seed, counts, n=20, ties=False):
    rng = np.random.default_rng(seed)
    stages = np.repeat(np.arange(len(counts)), counts)
    nsi = rng.gamma(1.5, 0.3, (n, len(stages)))
    if ties:
        nsi = np.round(nsi, 1)
    return nsi, stages


CASES = [(17, ), (5, 5, 5), (3, 4, 6, 3), (1, 1, 1), (1, 7)]


@pytest.mark.parametrize('counts', [(17, ), (5, 5, 5), (3, 4, 6, 3)])
@pytest.mark.parametrize('ties', [False, True])
@BOTH_MEANS
def test_closed_forms_equal_a_fine_grid(counts, ties, mu):
    """Midpoint rule over the support, Eq. 5 evaluated literally."""
    nsi, stages = trajectories(1, counts, n=3, ties=ties)
    nsi[0, stages == 0] = 0.0  # zeros in one stage
    cells = 1000
    for row in nsi:
        row = row[None]
        mean = thresholds(row, stages, mu)
        m1_end = max((row / mean.clip(1e-300)).max() - 1, 0)
        m2_end = row.max()
        m1 = (np.arange(cells) + 0.5) * m1_end / cells
        m2 = (np.arange(cells) + 0.5) * m2_end / cells
        delta = np.zeros((cells, cells), bool)
        share = 0.0
        areas = []
        for z, m in zip(row[0], mean[0]):
            hit = (z >= m * (1 + m1))[:, None] & (z >= m2) & (m > 0)
            delta |= hit
            share += hit.mean()
            areas.append(hit.mean() * m1_end * m2_end)
        np.testing.assert_allclose(
            block_stiffness(row, stages, mu), areas, rtol=5e-3, atol=1e-3)
        area = m1_end * m2_end
        assert total_neural_stiffness(row, stages, mu)[0] == pytest.approx(
            delta.mean() * area, rel=1e-3)
        assert total_stiffness_proportion(
            row, stages, mu)[0] == pytest.approx(
                share / len(stages) * area, rel=1e-3)


@pytest.mark.parametrize('counts', CASES)
@pytest.mark.parametrize('ties', [False, True])
@BOTH_MEANS
def test_grids_equal_the_definition(counts, ties, mu):
    nsi, stages = trajectories(2, counts, ties=ties)
    nsi[3] = 0.0
    nsi[4, stages == 0] = 0.0
    rng = np.random.default_rng(3)
    m1 = np.append(rng.uniform(0, 2, 13), 0)  # not sorted
    m2 = np.append(rng.uniform(0, 1, 11), 0)
    delta = stiffness_occurrence(nsi, stages, m1, m2, mu)
    p_hat = stiffness_proportion(nsi, stages, m1, m2, mu)
    assert delta.shape == p_hat.shape == (14, 12)
    for i, a in enumerate(m1):
        for j, b in enumerate(m2):
            # Where ζ = μ (1 + M1), rounding of the mean decides.
            few = stiff(nsi, stages, a + 1e-9, b, mu)
            many = stiff(nsi, stages, a - 1e-9, b, mu)
            assert few.any(1).mean() <= delta[i, j] <= many.any(1).mean()
            assert few.mean() - 1e-12 <= p_hat[i, j] <= many.mean() + 1e-12
            if not ties:
                hit = stiff(nsi, stages, a, b, mu)
                assert delta[i, j] == pytest.approx(hit.any(1).mean())
                assert p_hat[i, j] == pytest.approx(hit.mean())


def test_known_values():
    # μ = 1, one rectangle 1 x 2 and one of zero width.
    assert total_neural_stiffness([[0.0, 2.0]], [0, 0]) == [2.0]
    # Wide and low (3 x 0.4) beside narrow and high (1 x 2): union 2.8.
    nsi = [[0.0, 0.0, 0.0, 0.4, 0.0, 2.0]]
    stages = [7, 7, 7, 7, 2, 2]
    np.testing.assert_allclose(
        total_neural_stiffness(nsi, stages), [2.8], rtol=1e-14)
    np.testing.assert_allclose(
        total_stiffness_proportion(nsi, stages), [3.2 / 6], rtol=1e-14)


def test_the_mean_of_all_blocks():
    """One rectangle; the stages do not matter."""
    # μ = 1.25: 2 / 1.25 - 1 = 0.6 wide, 2 high; the next 0.2 x 1.5.
    nsi = [[0.5, 1.0, 1.5, 2.0]]
    for stages in ([0, 0, 0, 0], [0, 0, 1, 1], [3, 2, 1, 0]):
        np.testing.assert_allclose(
            total_neural_stiffness(nsi, stages, 'all'), [1.2], rtol=1e-14)
        np.testing.assert_allclose(
            total_stiffness_proportion(nsi, stages, 'all'), [1.5 / 4],
            rtol=1e-14)
        np.testing.assert_allclose(
            block_stiffness(nsi, stages, 'all'), [0, 0, 0.3, 1.2],
            rtol=1e-14)


def test_resnet18_is_stiff_by_the_mean_of_all_blocks():
    nsi, stages = trajectories(4, (1, 1, 1, 1))
    assert (total_neural_stiffness(nsi, stages) == 0).all()
    assert (total_neural_stiffness(nsi, stages, 'all') > 0).all()


def test_blocks_sum_to_the_total_proportion():
    nsi, stages = trajectories(6, (3, 4))
    for mu in ('stage', 'all'):
        assert block_stiffness(nsi, stages, mu).sum() / 7 == pytest.approx(
            total_stiffness_proportion(nsi, stages, mu).mean())
    assert (block_stiffness(np.zeros((2, 7)), stages) == 0).all()


@BOTH_MEANS
def test_axes_end_where_one_sample_in_a_hundred_is_stiff(mu):
    both = [trajectories(seed, (3, 4), n=500) for seed in (0, 1)]
    m1, m2 = degree_axes(both, mu)
    assert m1.shape == m2.shape == (40, )
    for axis in (m1, m2):
        np.testing.assert_allclose(np.diff(axis), 2 * axis[0])
    widths, heights = [], []
    for nsi, stages in both:
        ratio = nsi / thresholds(nsi, stages, mu) - 1
        widths.append(np.percentile(ratio.max(1), 99))
        heights.append(np.percentile(nsi.max(1), 99))
    assert m1[-1] + m1[0] == pytest.approx(max(widths))
    assert m2[-1] + m2[0] == pytest.approx(max(heights))


def test_axes_where_nothing_is_stiff():
    flat = [(np.ones((3, 4)), [0, 1, 2, 3])]
    assert degree_axes(flat)[0][-1] == pytest.approx(1 - 1 / 80)


def test_one_block_a_stage_and_rest_give_zero():
    nsi, stages = trajectories(4, (1, 1, 1, 1))
    assert (total_stiffness_proportion(nsi, stages) == 0).all()
    assert (total_neural_stiffness(np.zeros((3, 6)), [0] * 6) == 0).all()
    constant = np.full((3, 6), 0.1)  # its mean rounds
    assert (total_neural_stiffness(constant, [0] * 6) < 1e-15).all()


matrices = hnp.arrays(
    np.float64,
    hnp.array_shapes(min_dims=2, max_dims=2, max_side=8),
    elements=st.one_of(
        st.just(0.0), st.floats(1e-3, 1e3), st.sampled_from([0.25, 0.5])))


def stages_of(data, nsi):
    return np.array(
        data.draw(
            st.lists(
                st.integers(0, 3),
                min_size=nsi.shape[1],
                max_size=nsi.shape[1])))


@settings(max_examples=50, deadline=None)
@given(data=st.data(), nsi=matrices)
def test_properties(data, nsi):
    stages = stages_of(data, nsi)
    tns = total_neural_stiffness(nsi, stages)
    p_hat = total_stiffness_proportion(nsi, stages)
    for mu in ('stage', 'all'):
        np.testing.assert_allclose(
            total_neural_stiffness(nsi, stages, mu), sweep(nsi, stages, mu),
            rtol=1e-12, atol=1e-12 * nsi.max())

    bound = sum((np.sum(stages == s) - 1) * nsi[:, stages == s].max(1)
                for s in np.unique(stages))
    assert (tns <= bound * (1 + 1e-12)).all()
    # The union is at most the sum, which is L times the mean share.
    assert (tns <= p_hat * len(stages) * (1 + 1e-12) + 1e-300).all()

    order = np.array(data.draw(st.permutations(range(len(stages)))))
    rows = np.array(data.draw(st.permutations(range(len(nsi)))))
    renamed = np.array([5, 1, 9, 2])[stages]
    for function, value in ((total_neural_stiffness, tns),
                            (total_stiffness_proportion, p_hat)):
        np.testing.assert_allclose(
            function(nsi[rows][:, order], renamed[order]),
            value[rows],
            rtol=1e-9,
            atol=1e-12 * nsi.max())
        # M2 scales with ζ, M1 does not.
        np.testing.assert_allclose(
            function(4.0 * nsi, stages),
            4.0 * value,
            rtol=1e-12,
            atol=1e-12 * nsi.max())
        np.testing.assert_allclose(
            np.concatenate([function(row[None], stages) for row in nsi]),
            value,
            rtol=1e-9,
            atol=1e-12 * nsi.max())


@settings(max_examples=50, deadline=None)
@given(data=st.data(), nsi=matrices)
def test_grids_are_monotone_and_split_invariant(data, nsi):
    stages = stages_of(data, nsi)
    m1, m2 = np.linspace(0, 4, 9), np.linspace(0, 2, 7)
    for function in (stiffness_occurrence, stiffness_proportion):
        grid = function(nsi, stages, m1, m2)
        assert (grid >= 0).all() and (grid <= 1).all()
        assert (np.diff(grid, axis=0) <= 0).all()
        assert (np.diff(grid, axis=1) <= 0).all()
        rows = [function(row[None], stages, m1, m2) for row in nsi]
        np.testing.assert_allclose(np.mean(rows, 0), grid, atol=1e-12)
    assert stiffness_occurrence(nsi, stages, [0], [0]) == [[1.0]]


def test_types():
    nsi, stages = trajectories(5, (3, 4))
    expected = total_neural_stiffness(nsi, stages)
    assert isinstance(expected, np.ndarray)
    for dtype, tolerance in ((torch.float64, 0), (torch.float32, 1e-6),
                             (torch.float16, 1e-2)):
        given_as = torch.tensor(nsi, dtype=dtype)
        tns = total_neural_stiffness(given_as, stages)
        assert tns.dtype == torch.float64
        # Only the rounding of the input is lost.
        np.testing.assert_array_equal(
            tns, total_neural_stiffness(given_as.double().numpy(), stages))
        np.testing.assert_allclose(tns, expected, rtol=10 * tolerance,
                                   atol=tolerance)
    grid = stiffness_occurrence(nsi, torch.tensor(stages), [0.1], [0.1])
    assert isinstance(grid, torch.Tensor) and grid.dtype == torch.float64


@pytest.mark.parametrize('nsi, stages, message', [
    (np.empty((0, 3)), [0, 0, 0], r'nsi must have shape \(N, L\)'),
    (np.empty((3, 0)), [], r'nsi must have shape \(N, L\)'),
    (np.ones(3), [0, 0, 0], r'nsi must have shape \(N, L\)'),
    (np.ones((2, 3)), [0, 0], r'stages must have shape \(3\)'),
    (np.ones((2, 3)), [0, 0, 0.5], 'stages must be integers'),
    ([[1.0, np.nan]], [0, 0], r'nsi holds NaN.*\(0, 1\)'),
    ([[1.0, np.inf]], [0, 0], r'nsi holds NaN or infinity'),
    ([[1.0, -0.5]], [0, 0], r'not negative, got -0.5 at index \(0, 1\)'),
])
def test_bad_input(nsi, stages, message):
    for function in (total_neural_stiffness, total_stiffness_proportion,
                     block_stiffness):
        with pytest.raises(ValueError, match=message):
            function(nsi, stages)
    for function in (stiffness_occurrence, stiffness_proportion):
        with pytest.raises(ValueError, match=message):
            function(nsi, stages, [0.1], [0.1])


def test_bad_mean():
    for function, more in ((total_neural_stiffness, ()),
                           (total_stiffness_proportion, ()),
                           (block_stiffness, ()),
                           (stiffness_occurrence, ([0.1], [0.1])),
                           (stiffness_proportion, ([0.1], [0.1]))):
        with pytest.raises(ValueError,
                           match="mu must be one of stage, all, got 'mine'"):
            function([[1.0]], [0], *more, mu='mine')


def test_bad_thresholds():
    with pytest.raises(ValueError, match='m1 must not be negative, got -1'):
        stiffness_occurrence([[1.0]], [0], [-1.0], [0.0])
    with pytest.raises(ValueError, match=r'm2 must have shape \(A\)'):
        stiffness_proportion([[1.0]], [0], [1.0], [[0.0]])
    with pytest.raises(TypeError, match='nsi must be a tensor.*got str'):
        total_neural_stiffness('high', [0])
