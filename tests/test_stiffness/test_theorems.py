"""Lemma 1, Theorem 1 and Eq. 33 of the paper, as they hold."""

import numpy as np
import pytest
import torch

from mmstepnet.propagation import dot_product_propagation
from mmstepnet.stiffness import (
    stiffness_occurrence,
    total_neural_stiffness,
)
from tests.utils import seeded

STAGES = np.repeat([0, 1, 2], [3, 5, 9])


@pytest.mark.parametrize('mu, blocks', [('stage', 9), ('all', 17)])
def test_lemma_1_needs_no_bound_on_norms(mu, blocks):
    """δ(M) = 0 for M_1 > L - 1, and for M_2 > max NSI, whatever the other.

    The largest of L values is at most L times their mean; heavy tails come
    near to it, a single value that is not 0 reaches it. (A stage at rest is
    stiff to M_2 = 0 alone.)
    """
    nsi = np.exp(3 * np.random.default_rng(0).standard_normal((200, 17)))
    nsi[0] = 0
    nsi[0, -1] = 7.0
    top = nsi.max()
    beyond = stiffness_occurrence(
        nsi, STAGES, [blocks - 1 + 1e-9, 1e9], [1e-9, 1e-3], mu)
    above = stiffness_occurrence(
        nsi, STAGES, [0.0, 1e-3], [top * (1 + 1e-9), 1e9], mu)
    assert not beyond.any() and not above.any()
    within = stiffness_occurrence(
        nsi, STAGES, [blocks - 1 - 1e-9], [7.0], mu)
    assert within[0, 0] * len(nsi) == pytest.approx(1)


@pytest.mark.parametrize('mu, blocks', [('stage', 9), ('all', 17)])
def test_theorem_1_with_its_bound(mu, blocks):
    """TNS is at most (L - 1) max NSI, sample by sample; it is reached."""
    nsi = np.exp(3 * np.random.default_rng(1).standard_normal((200, 17)))
    bound = (blocks - 1) * nsi.max(1)
    assert (total_neural_stiffness(nsi, STAGES, mu) <= bound).all()
    alone = np.zeros((1, 17))
    alone[0, -1] = 7.0
    assert total_neural_stiffness(alone, STAGES, mu)[0] == pytest.approx(
        (blocks - 1) * 7)


def test_eq_33_rests_on_an_invertible_value_map():
    """Attention is a function of V = f_3(x), as queries and keys are."""
    x, query, key, value = seeded(4, 6, 6).double()
    v = x @ value
    from_x = dot_product_propagation(x @ query, x @ key, v)
    back = torch.linalg.solve(value, v, left=False)
    torch.testing.assert_close(
        dot_product_propagation(back @ query, back @ key, v), from_x)
    # A value map of lower rank sends other states to the same V.
    value[:, 0] = value[:, 1]
    lost = torch.linalg.svd(value).U[:, -1]
    other = x + lost
    torch.testing.assert_close(other @ value, x @ value)
    change = (dot_product_propagation(other @ query, other @ key, x @ value)
              - dot_product_propagation(x @ query, x @ key, x @ value))
    assert change.abs().max() > 0.1
