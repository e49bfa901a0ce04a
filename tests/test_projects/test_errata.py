"""The errata's numbers, each found another way; and the page has them."""

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from projects import errata
from tests.documents import ROOT


def test_page_and_table_have_what_the_command_prints():
    page = (ROOT / 'docs' / 'errata.md').read_text('utf-8')
    assert f'\n{errata.page()}\n' in page
    table = (ROOT / 'projects' / 'errata.tsv').read_text('utf-8')
    assert f'{errata.table()}\n' == table


@pytest.mark.parametrize('seed', range(3))
def test_theorem_2_with_an_affine_term(seed):
    """Against an integrator that knows no eigenvalue: J is not diagonal."""
    rng = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(rng.standard_normal((4, 4)))
    rates = -np.sort(rng.uniform(0.1, 9, 4))[::-1]
    state, drive = rng.standard_normal((2, 4))
    jacobian = basis @ np.diag(rates) @ basis.T
    t = 1e-6
    later = solve_ivp(
        lambda _, u: jacobian @ u + basis @ drive,
        (0, t),
        basis @ state,
        rtol=1e-12,
        atol=1e-13,
    ).y[:, -1]
    sai = np.linalg.norm(later - basis @ state) / t / np.linalg.norm(state)
    expected = sai / np.abs(rates).max()
    assert errata.root_of_theorem_2(rates, state, drive) == pytest.approx(
        expected, rel=1e-4
    )
    assert errata.sai_over_si(rates, state, drive) == pytest.approx(
        expected, rel=1e-4
    )
    assert errata.root_of_theorem_2(
        rates, state, drive, printed=True
    ) != pytest.approx(expected, rel=1e-3)


def test_the_state_that_doubles_once():
    """NSI of the states themselves, norms within 1 and 2."""
    states = np.concatenate([[[1.0]], np.full((51, 1), 2.0)])
    moved = np.abs(np.diff(states[:, 0])) / np.abs(states[:-1, 0])
    np.testing.assert_array_equal(moved[None], errata.one_large_step())
    m1, m2 = np.meshgrid(
        np.linspace(0.05, 59.95, 600), np.linspace(0.005, 1.995, 200)
    )
    stiff = (moved.max() >= moved.mean() * (1 + m1)) & (moved.max() >= m2)
    assert stiff.mean() * 60 * 2 == pytest.approx(50, rel=0.01)
    assert (stiff & (m1 < 5)).mean() * 60 * 2 == pytest.approx(5, rel=0.01)
