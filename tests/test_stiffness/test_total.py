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


def means(nsi, stages, mu='stage'):
    """μ of each sample and block, by Definition 2 or Eq. 15."""
    stages = np.zeros(len(stages)) if mu == 'all' else np.asarray(stages)
    mean = np.zeros_like(nsi)
    for s in np.unique(stages):
        mean[:, stages == s] = nsi[:, stages == s].mean(1, keepdims=True)
    return mean


def stiff(nsi, mean, m1, m2):
    """Eq. 5's condition for one degree (M1, M2), or many."""
    return nsi >= np.maximum(mean * (1 + m1), m2)


def integrals(nsi, stages, mu):
    """TNS (N,) and each block's area of degrees (N, L), by Eq. 5.

    The condition changes at the values of ζ/μ - 1 and of ζ alone, so that a
    sum over the cells between them is exact.
    """
    totals, areas = [], []
    for row, mean in zip(nsi, means(nsi, stages, mu)):
        edges = [
            np.unique(np.append(side.clip(0), 0))
            for side in (row[mean > 0] / mean[mean > 0] - 1, row)
        ]
        m1, m2 = ((edge[1:] + edge[:-1]) / 2 for edge in edges)
        hits = stiff(*(t[:, None, None] for t in (row, mean)), m1[:, None], m2)
        cells = np.outer(*map(np.diff, edges))
        totals.append((hits.any(0) * cells).sum())
        areas.append((hits * cells).sum((1, 2)))
    return np.array(totals), np.array(areas)


def trajectories(seed, counts, n=20):
    rng = np.random.default_rng(seed)
    stages = np.repeat(np.arange(len(counts)), counts)
    return rng.gamma(1.5, 0.3, (n, len(stages))), stages


def test_known_values():
    # Wide and low (3 x 0.4) beside narrow and high (1 x 2): union 2.8.
    nsi, stages = [[0.0, 0.0, 0.0, 0.4, 0.0, 2.0]], [7, 7, 7, 7, 2, 2]
    np.testing.assert_allclose(
        total_neural_stiffness(nsi, stages), [2.8], rtol=1e-14
    )
    # One mean, 1.25: 2 / 1.25 - 1 = 0.6 wide, 2 high; the next 0.2 x 1.5.
    np.testing.assert_allclose(
        block_stiffness([[0.5, 1.0, 1.5, 2.0]], [3, 2, 1, 0], 'all'),
        [0, 0, 0.3, 1.2],
        rtol=1e-14,
    )
    # One block a stage equals its mean; a constant does, up to rounding.
    nsi, stages = trajectories(4, (1, 1, 1, 1))
    assert (total_neural_stiffness(nsi, stages) == 0).all()
    assert (total_neural_stiffness(nsi, stages, 'all') > 0).all()
    constant = np.full((3, 6), 0.1)
    assert (total_neural_stiffness(constant, [0] * 6) < 1e-15).all()
    assert stiffness_occurrence(constant, [0] * 6, [0], [0.1]) == 1


@pytest.mark.parametrize('mu', ['stage', 'all'])
def test_axes_end_where_one_sample_in_a_hundred_is_stiff(mu):
    both = [trajectories(seed, (3, 4), n=500) for seed in (0, 1)]
    sides = [[nsi / means(nsi, stages, mu) - 1, nsi] for nsi, stages in both]
    for axis, each in zip(degree_axes(both, mu), zip(*sides)):
        np.testing.assert_allclose(np.diff(axis), 2 * axis[0])
        assert axis[-1] + axis[0] == pytest.approx(
            max(np.percentile(side.max(1), 99) for side in each)
        )
    flat = degree_axes([(np.ones((3, 4)), [0, 1, 2, 3])], mu)
    assert flat[0][-1] == pytest.approx(1 - 1 / 80)


@settings(max_examples=50, deadline=None)
@given(
    data=st.data(),
    nsi=hnp.arrays(
        np.float64,
        hnp.array_shapes(min_dims=2, max_dims=2, max_side=17),
        elements=st.one_of(
            st.just(0.0), st.floats(1e-3, 1e3), st.sampled_from([0.25, 0.5])
        ),
    ),
)
def test_definition_and_invariances(data, nsi):
    """Eq. 5 literally; scale, types, order of samples and blocks, splits."""
    length = nsi.shape[1]
    stages = np.array(
        data.draw(
            st.lists(st.integers(0, 3), min_size=length, max_size=length)
        )
    )
    order = np.array(data.draw(st.permutations(range(length))))
    rows = np.array(data.draw(st.permutations(range(len(nsi)))))
    renamed = np.array([5, 1, 9, 2])[stages]
    close = dict(rtol=1e-9, atol=1e-12 * nsi.max())
    m1, m2 = np.array([1.3, 0, 0.25, 4]), np.array([0.25, 0, 0.7])
    for mu in ('stage', 'all'):
        totals, areas = integrals(nsi, stages, mu)
        # Theorem 1: TNS <= (L - 1) max ζ. Lemma 1: δ(M) = 0 for M1 > L - 1
        # or M2 > max ζ.
        most, top = (
            dict(stage=np.bincount(stages).max(), all=length)[mu] - 1 + 1e-9,
            nsi.max() * (1 + 1e-9),
        )
        assert (
            total_neural_stiffness(nsi, stages, mu) <= (most * nsi.max(1))
        ).all()
        for outside in (([most], [1e-9, 1e-3]), ([0, 1e-3], [top + 1e-9])):
            assert not stiffness_occurrence(nsi, stages, *outside, mu).any()
        np.testing.assert_allclose(
            block_stiffness(nsi, stages, mu), areas.mean(0), **close
        )
        for function, value in (
            (total_neural_stiffness, totals),
            (total_stiffness_proportion, areas.mean(1)),
        ):
            np.testing.assert_allclose(
                function(nsi, stages, mu), value, **close
            )
            np.testing.assert_allclose(
                function(nsi[rows][:, order], renamed[order], mu),
                value[rows],
                **close,
            )
            # M2 scales with ζ, M1 does not.
            np.testing.assert_allclose(
                function(4.0 * nsi, stages, mu), 4.0 * value, **close
            )
            np.testing.assert_allclose(
                np.concatenate(
                    [function(row[None], stages, mu) for row in nsi]
                ),
                value,
                **close,
            )
            given = torch.tensor(nsi).to(torch.bfloat16)
            np.testing.assert_array_equal(
                function(given, stages, mu),
                function(given.double().numpy(), stages, mu),
            )
        delta = stiffness_occurrence(nsi, stages, m1, m2, mu)
        p_hat = stiffness_proportion(nsi, torch.tensor(stages), m1, m2, mu)
        assert isinstance(delta, np.ndarray) and torch.is_tensor(p_hat)
        mean = means(nsi, stages, mu)
        for i, a in enumerate(m1):
            for j, b in enumerate(m2):
                # Where ζ = μ (1 + M1), rounding of the mean decides.
                few, many = (stiff(nsi, mean, a + d, b) for d in (1e-9, -1e-9))
                assert few.any(1).mean() <= delta[i, j] <= many.any(1).mean()
                assert (
                    few.mean() - 1e-12 <= p_hat[i, j] <= (many.mean() + 1e-12)
                )
