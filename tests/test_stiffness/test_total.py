"""TNS and its indicators against the definitions, evaluated literally."""

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

MEANS = pytest.mark.parametrize('mu', ['stage', 'all'])


def means(nsi, stages, mu='stage'):
    """μ of each sample and block, by Definition 2 or Eq. 15."""
    stages = np.zeros(len(stages)) if mu == 'all' else np.asarray(stages)
    mean = np.zeros_like(nsi)
    for s in np.unique(stages):
        mean[:, stages == s] = nsi[:, stages == s].mean(1, keepdims=True)
    return mean


def stiff(nsi, stages, m1, m2, mu='stage'):
    """Eq. 5's condition for one degree (M1, M2); (N, L)."""
    return nsi >= np.maximum(means(nsi, stages, mu) * (1 + m1), m2)


def sweep(nsi, stages, mu='stage'):
    """TNS as the integral over M1 of the largest ζ that reaches it, (N,)."""
    areas = []
    for row, mean in zip(nsi, means(nsi, stages, mu)):
        moving = mean > 0
        a = row[moving] / mean[moving] - 1
        edges = np.unique(np.concatenate([[0], a[a > 0]]))
        areas.append(sum(
            (right - left) * row[moving][a >= right].max()
            for left, right in zip(edges[:-1], edges[1:])))
    return np.array(areas)


def trajectories(seed, counts, n=20):
    rng = np.random.default_rng(seed)
    stages = np.repeat(np.arange(len(counts)), counts)
    return rng.gamma(1.5, 0.3, (n, len(stages))), stages


@pytest.mark.parametrize('counts', [(17, ), (3, 4, 6, 3)])
@MEANS
def test_closed_forms_equal_a_fine_grid(counts, mu):
    """Midpoint rule over the support, Eq. 5 evaluated literally."""
    nsi, stages = trajectories(1, counts, n=3)
    nsi[0, stages == 0] = 0.0  # zeros in one stage
    cells = 1000
    for row in np.split(nsi, 3):
        mean = means(row, stages, mu)
        ends = [max((row / mean.clip(1e-300)).max() - 1, 0), row.max()]
        m1, m2 = ((np.arange(cells) + 0.5) * end / cells for end in ends)
        hits = [(z >= m * (1 + m1))[:, None] & (z >= m2) & (m > 0)
                for z, m in zip(row[0], mean[0])]
        areas = [hit.mean() * np.prod(ends) for hit in hits]
        np.testing.assert_allclose(
            block_stiffness(row, stages, mu), areas, rtol=5e-3, atol=1e-3)
        assert total_neural_stiffness(row, stages, mu)[0] == pytest.approx(
            np.any(hits, axis=0).mean() * np.prod(ends), rel=1e-3)
        assert total_stiffness_proportion(row, stages, mu)[0] == (
            pytest.approx(np.mean(areas), rel=1e-3))


def test_known_values():
    # Wide and low (3 x 0.4) beside narrow and high (1 x 2): union 2.8.
    nsi, stages = [[0.0, 0.0, 0.0, 0.4, 0.0, 2.0]], [7, 7, 7, 7, 2, 2]
    np.testing.assert_allclose(
        total_neural_stiffness(nsi, stages), [2.8], rtol=1e-14)
    # One mean, 1.25: 2 / 1.25 - 1 = 0.6 wide, 2 high; the next 0.2 x 1.5.
    np.testing.assert_allclose(block_stiffness(
        [[0.5, 1.0, 1.5, 2.0]], [3, 2, 1, 0], 'all'), [0, 0, 0.3, 1.2],
        rtol=1e-14)
    # One block a stage equals its mean; a constant does, up to rounding.
    nsi, stages = trajectories(4, (1, 1, 1, 1))
    assert (total_neural_stiffness(nsi, stages) == 0).all()
    assert (total_neural_stiffness(nsi, stages, 'all') > 0).all()
    constant = np.full((3, 6), 0.1)
    assert (total_neural_stiffness(constant, [0] * 6) < 1e-15).all()
    assert stiffness_occurrence(constant, [0] * 6, [0], [0.1]) == 1


@MEANS
def test_axes_end_where_one_sample_in_a_hundred_is_stiff(mu):
    both = [trajectories(seed, (3, 4), n=500) for seed in (0, 1)]
    axes = degree_axes(both, mu)
    sides = [[nsi / means(nsi, stages, mu) - 1, nsi] for nsi, stages in both]
    for axis, each in zip(axes, zip(*sides)):
        np.testing.assert_allclose(np.diff(axis), 2 * axis[0])
        assert axis[-1] + axis[0] == pytest.approx(max(
            np.percentile(side.max(1), 99) for side in each))
    flat = degree_axes([(np.ones((3, 4)), [0, 1, 2, 3])], mu)
    assert flat[0][-1] == pytest.approx(1 - 1 / 80)


@MEANS
def test_lemma_1_and_theorem_1(mu):
    """δ(M) = 0 for M_1 > L - 1 or M_2 > max NSI; TNS <= (L - 1) max NSI.

    The largest of L values is at most L times their mean; heavy tails come
    near to it, a single value that is not 0 reaches it.
    """
    stages, blocks = np.repeat([0, 1, 2], [3, 5, 9]), dict(stage=9, all=17)[mu]
    nsi = np.exp(3 * np.random.default_rng(0).standard_normal((200, 17)))
    nsi[0] = 0
    nsi[0, -1] = 7.0
    top = nsi.max()
    for m1, m2 in (([blocks - 1 + 1e-9, 1e9], [1e-9, 1e-3]),
                   ([0.0, 1e-3], [top * (1 + 1e-9), 1e9])):
        assert not stiffness_occurrence(nsi, stages, m1, m2, mu).any()
    within = stiffness_occurrence(nsi, stages, [blocks - 1 - 1e-9], [7.0], mu)
    assert within[0, 0] * len(nsi) == pytest.approx(1)
    tns = total_neural_stiffness(nsi, stages, mu)
    assert (tns <= (blocks - 1) * nsi.max(1) * (1 + 1e-12)).all()
    assert tns[0] == pytest.approx((blocks - 1) * 7)


@settings(max_examples=50, deadline=None)
@given(data=st.data(), nsi=hnp.arrays(
    np.float64, hnp.array_shapes(min_dims=2, max_dims=2, max_side=8),
    elements=st.one_of(st.just(0.0), st.floats(1e-3, 1e3),
                       st.sampled_from([0.25, 0.5]))))
def test_properties(data, nsi):
    """Definition, sweep, scale, types, and invariance to order and splits."""
    length = nsi.shape[1]
    stages = np.array(data.draw(st.lists(
        st.integers(0, 3), min_size=length, max_size=length)))
    order = np.array(data.draw(st.permutations(range(length))))
    rows = np.array(data.draw(st.permutations(range(len(nsi)))))
    renamed = np.array([5, 1, 9, 2])[stages]
    close = dict(rtol=1e-9, atol=1e-12 * nsi.max())
    m1, m2 = np.array([1.3, 0, 0.25, 4]), np.array([0.25, 0, 0.7])
    for mu in ('stage', 'all'):
        tns = total_neural_stiffness(nsi, stages, mu)
        p_hat = total_stiffness_proportion(nsi, stages, mu)
        np.testing.assert_allclose(tns, sweep(nsi, stages, mu), **close)
        assert block_stiffness(nsi, stages, mu).mean() == pytest.approx(
            p_hat.mean())
        for function, value in ((total_neural_stiffness, tns),
                                (total_stiffness_proportion, p_hat)):
            np.testing.assert_allclose(function(
                nsi[rows][:, order], renamed[order], mu), value[rows], **close)
            # M2 scales with ζ, M1 does not.
            np.testing.assert_allclose(
                function(4.0 * nsi, stages, mu), 4.0 * value, **close)
            np.testing.assert_allclose(np.concatenate(
                [function(row[None], stages, mu) for row in nsi]), value,
                **close)
            given = torch.tensor(nsi).to(torch.bfloat16)
            np.testing.assert_array_equal(
                function(given, stages, mu),
                function(given.double().numpy(), stages, mu))
        delta = stiffness_occurrence(nsi, stages, m1, m2, mu)
        p_hat = stiffness_proportion(nsi, torch.tensor(stages), m1, m2, mu)
        assert isinstance(delta, np.ndarray) and torch.is_tensor(p_hat)
        for i, a in enumerate(m1):
            for j, b in enumerate(m2):
                # Where ζ = μ (1 + M1), rounding of the mean decides.
                few, many = (stiff(nsi, stages, a + d, b, mu)
                             for d in (1e-9, -1e-9))
                assert few.any(1).mean() <= delta[i, j] <= many.any(1).mean()
                assert few.mean() - 1e-12 <= p_hat[i, j] <= (
                    many.mean() + 1e-12)
