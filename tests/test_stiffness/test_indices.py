"""NSI, SAI and SI against NumPy, SciPy and known eigenvalues."""

import numpy as np
import pytest
import torch
from scipy.linalg import block_diag, expm

from mmstepnet.attentions import StepNet
from mmstepnet.propagation import DotProductAttention, MetricAttention
from mmstepnet.stiffness import (
    neural_stiffness_index,
    simplified_stiffness,
    stiffness_aware_index,
    stiffness_index,
)
from tests.utils import StepBlock, perturb, seeded


def test_nsi_equals_numpy():
    rng = np.random.default_rng(0)
    x, f = rng.standard_normal((2, 4, 3, 5, 5))
    step = rng.uniform(0.1, 1, (4, 3, 1, 1))
    for given, moved in (
        (step, f),
        (1.0, f * step),
        (step.astype(np.float32), f),
    ):
        np.testing.assert_allclose(
            neural_stiffness_index(x, x + f * step, given),
            [np.sqrt((a**2).sum() / (b**2).sum()) for a, b in zip(moved, x)],
            rtol=1e-6,
        )
    # 60² · 1000 overflows float16.
    x = torch.full((2, 1000), 60.0, dtype=torch.float16)
    nsi = neural_stiffness_index(x, 2 * x)
    assert nsi.dtype == torch.float64 and nsi.tolist() == [1.0, 1.0]
    assert isinstance(neural_stiffness_index(x.numpy(), x.numpy()), np.ndarray)
    assert neural_stiffness_index([[0.0, 0.0]], [[0.0, 0.0]]) == [0.0]


def test_sai_equals_numpy():
    rng = np.random.default_rng(1)
    u, t = rng.standard_normal((9, 4)), np.cumsum(rng.uniform(0.1, 1, 9))
    difference = np.diff(u, axis=0) / np.diff(t)[:, None]
    np.testing.assert_allclose(
        simplified_stiffness(u, t), difference, rtol=1e-13
    )
    np.testing.assert_allclose(
        stiffness_aware_index(torch.tensor(u), torch.tensor(t)),
        np.linalg.norm(difference, axis=1) / np.linalg.norm(u[:-1], axis=1),
        rtol=1e-13,
    )


def similar(blocks, real, seed=3):
    """A real matrix, not normal, of given blocks and real eigenvalues."""
    rng = np.random.default_rng(seed)
    matrix = block_diag(*blocks, np.diag(real))
    q, _ = np.linalg.qr(rng.standard_normal(matrix.shape))
    scale = q * rng.uniform(0.5, 2, len(matrix))
    return torch.tensor(scale @ matrix @ np.linalg.inv(scale))


SPIRAL = [[-1.0, 100.0], [-100.0, -1.0]]  # -1 ± 100i
GROWING = [[40.0, 7.0], [-7.0, 40.0]]  # 40 ± 7i


MATRICES = {  # blocks of a matrix, its real eigenvalues, and its SI
    # |Re| decides, not the modulus.
    **{
        f'a spiral and {n} decays': (
            [SPIRAL, [[-50.0]]],
            np.linspace(-30, 0, n),
            50,
        )
        for n in (0, 57, 397)
    },
    # The largest real part may be the positive one.
    **{
        f'a growing spiral and {n}': ([GROWING], np.linspace(-30, 5, n), 40)
        for n in (2, 298)
    },
    # At the other end the eigenvalues lie too close for ARPACK.
    **{
        f'{end:g} and many': ([[[end]]], -np.logspace(0, 5, 299), 1e6)
        for end in (-1e6, 1e6)
    },
}


@pytest.mark.parametrize(
    'blocks, real, expected', MATRICES.values(), ids=MATRICES
)
def test_si_of_matrices(blocks, real, expected):
    matrix = similar(blocks, real)
    assert stiffness_index(matrix.mv, seeded(len(matrix)).double()) == (
        pytest.approx(expected, rel=1e-6)
    )


def van_der_pol(n):
    """Independent oscillators, of which the stiffest decides."""
    mu = 10 * seeded(n).double().abs()
    return lambda u: torch.stack([u[1], mu * (1 - u[0] ** 2) * u[1] - u[0]])


class Cube(torch.autograd.Function):
    """A custom function that forward mode can pass."""

    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_forward(*inputs)

    @staticmethod
    def jvp(ctx, tangent):
        return 3 * ctx.saved_tensors[0] ** 2 * tangent


SYSTEMS = {  # right side, the same for autograd if need be, shape of u
    **{f'{n} oscillators': (van_der_pol(n), None, (2, n)) for n in (1, 150)},
    **{
        f'{name} of {n}': (rhs, plain, (n,))
        for n in (5, 200)
        for name, rhs, plain in (
            ('a custom function', lambda v: -Cube.apply(v), lambda v: -(v**3)),
            # As zero_init_residual starts.
            ('zeros', lambda v: 0 * v, None),
            (
                'a cube in place',
                lambda v: -(v.add_(1) ** 3),
                lambda v: -((v + 1) ** 3),
            ),
        )
    },
    # The fused step and fused attention know no forward-mode derivative.
    **{
        name: (perturb(layer).double().eval(), None, shape)
        for name, layer, shape in (
            ('a step', StepBlock(StepNet(8)), (1, 8, 5, 4)),
            ('metric', MetricAttention(8, num_heads=2), (1, 6, 8)),
            ('dot product', DotProductAttention(8, num_heads=2), (1, 6, 8)),
        )
    },
}


@pytest.mark.parametrize('rhs, plain, shape', SYSTEMS.values(), ids=SYSTEMS)
def test_si_of_systems(rhs, plain, shape):
    """Against the eigenvalues of a Jacobian that autograd makes by rows."""
    u = seeded(*shape).double()
    given = u.clone()
    jacobian = torch.autograd.functional.jacobian(plain or rhs, u)
    values = np.linalg.eigvals(jacobian.view(u.numel(), -1).numpy())
    assert stiffness_index(rhs, u) == pytest.approx(
        np.abs(values.real).max(), rel=1e-6
    )
    assert torch.equal(u, given)


def test_theorem_2_on_a_linear_symmetric_system():
    """SAI -> SI sqrt(c + Q), Eq. 31's U with the squares of the proof.

    c = c_1² / Σ c_i², U = Σ_{i>1} c_i² λ_i² / (λ_1² Σ c_i²).
    """
    rng = np.random.default_rng(7)
    q, _ = np.linalg.qr(rng.standard_normal((6, 6)))
    others = -np.array([0.3, 0.7, 1.1, 2.0, 3.1])
    coefficients = rng.standard_normal(6)
    u = q @ coefficients
    share = coefficients**2 / (coefficients**2).sum()
    ratios = []
    for stiffest in (-5.0, -50.0, -5000.0):
        matrix = torch.tensor(q * np.append(stiffest, others) @ q.T)
        si = stiffness_index(matrix.mv, u)
        assert si == pytest.approx(-stiffest, rel=1e-6)
        dt = 1e-7 / si
        observed = np.stack([u, expm(matrix.numpy() * dt) @ u])
        sai = stiffness_aware_index(observed, [0.0, dt])[0]
        rest = (share[1:] * others**2).sum() / stiffest**2
        assert sai == pytest.approx(si * np.sqrt(share[0] + rest), rel=1e-6)
        ratios.append(sai / si)
    # Q vanishes as SI grows: SAI becomes proportional to SI.
    assert abs(ratios[-1] - np.sqrt(share[0])) < 1e-5
    assert abs(ratios[0] - np.sqrt(share[0])) > 1e-2
