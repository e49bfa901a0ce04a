import numpy as np
import pytest
import torch
import torch.nn as nn
from scipy.linalg import expm

from mmstepnet.propagation import (
    DotProductAttention,
    L2Attention,
    MetricAttention,
)
from mmstepnet.stiffness import (
    neural_stiffness_index,
    simplified_stiffness,
    stiffness_aware_index,
    stiffness_index,
)
from tests.utils import perturb


def test_nsi_equals_numpy():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4, 3, 5, 5))
    f = rng.standard_normal((4, 3, 5, 5))
    step = rng.uniform(0.1, 1, (4, 3, 1, 1))
    for given_step, expected in (
        (step, f), (1.0, f * step), (step.astype(np.float32), f)):
        nsi = neural_stiffness_index(x, x + f * step, given_step)
        np.testing.assert_allclose(
            nsi, [
                np.sqrt((a**2).sum()) / np.sqrt((b**2).sum())
                for a, b in zip(expected, x)
            ],
            rtol=1e-6)


def test_nsi_types_and_half_precision():
    x = torch.full((2, 1000), 60.0, dtype=torch.float16)
    nsi = neural_stiffness_index(x, 2 * x)
    # 60² · 1000 overflows float16.
    assert nsi.dtype == torch.float64 and nsi.tolist() == [1.0, 1.0]
    assert isinstance(
        neural_stiffness_index(x.numpy(), x.numpy()), np.ndarray)


@pytest.mark.parametrize('x, x_next, step, message', [
    ([[1., 2.]], [[1., 2., 3.]], 1.0, r'x_next must have shape \(1, 2\)'),
    (np.empty((0, 2)), np.empty((0, 2)), 1.0, 'x must have shape'),
    ([[1., np.nan]], [[1., 2.]], 1.0, r'x holds NaN.*\(0, 1\)'),
    ([[1., 2.]], [[1., np.inf]], 1.0, 'x_next holds NaN or infinity'),
    ([[1., 2.], [0., 0.]], [[1., 2.], [1., 0.]], 1.0,
     r'index \(1,\) has norm 0'),
    ([[1., 2.]], [[1., 2.]], 0.0, 'step is 0'),
    ([[1., 2.]], [[1., 2.]], [1., 1., 1.], r'step of shape \(3,\) does not'),
    ([[1., 2.]], [[1., 2.]], [[1.], [1.]], r'step of shape \(2, 1\) does'),
])
def test_nsi_bad_input(x, x_next, step, message):
    with pytest.raises(ValueError, match=message):
        neural_stiffness_index(x, x_next, step)


def test_nsi_of_rest_is_zero():
    assert neural_stiffness_index([[0., 0.]], [[0., 0.]]) == [0.0]


def test_sai_equals_numpy():
    rng = np.random.default_rng(1)
    u, t = rng.standard_normal((9, 4)), np.cumsum(rng.uniform(0.1, 1, 9))
    difference = np.diff(u, axis=0) / np.diff(t)[:, None]
    np.testing.assert_allclose(
        simplified_stiffness(u, t), difference, rtol=1e-13)
    np.testing.assert_allclose(
        stiffness_aware_index(u, t),
        np.linalg.norm(difference, axis=1) / np.linalg.norm(u[:-1], axis=1),
        rtol=1e-13)
    tensor = stiffness_aware_index(torch.tensor(u), torch.tensor(t))
    assert isinstance(tensor, torch.Tensor)


@pytest.mark.parametrize('u, t, message', [
    ([[1.], [2.]], [0., 0.], r'must increase, but t\[0\] = 0 and t\[1\] = 0'),
    ([[1.], [2.]], [1., 0.], 'sort the observations'),
    ([[1.]], [0.], 'one observation'),
    ([[1.], [2.]], [0., 1., 2.], r't must have shape \(2\)'),
    ([1., 2.], [0., 1.], r'u must have shape \(T, d\)'),
    ([[1.], [2.]], [0., np.nan], 't holds NaN'),
    ([[0.], [2.]], [0., 1.], r'index \(0,\) has norm 0'),
])
def test_sai_bad_input(u, t, message):
    with pytest.raises(ValueError, match=message):
        stiffness_aware_index(u, t)


def similar(eigenvalue_blocks, seed):
    """Real matrix with the given eigenvalues, not normal."""
    n = sum(len(b) for b in eigenvalue_blocks)
    matrix = np.zeros((n, n))
    at = 0
    for block in eigenvalue_blocks:
        end = at + len(block)
        matrix[at:end, at:end] = block
        at = end
    rng = np.random.default_rng(seed)
    q, _ = np.linalg.qr(rng.standard_normal((n, n)))
    scale = q * rng.uniform(0.5, 2, n)
    return torch.tensor(scale @ matrix @ np.linalg.inv(scale))


SPIRAL = [[-1.0, 100.0], [-100.0, -1.0]]  # -1 ± 100i


@pytest.mark.parametrize('n', [3, 60, 400])
def test_si_of_real_beside_complex_eigenvalues(n):
    """|Re| decides, not the modulus: 50, not 100."""
    rest = [[[v]] for v in np.random.default_rng(2).uniform(-30, 0, n - 3)]
    matrix = similar([SPIRAL, [[-50.0]], *rest], 3)
    u = torch.randn(n, dtype=torch.float64)
    assert stiffness_index(lambda v: matrix @ v, u) == pytest.approx(
        50, rel=1e-6)


@pytest.mark.parametrize('n', [4, 300])
def test_si_of_unstable_system(n):
    """The largest real part may be the positive one."""
    rest = [[[v]] for v in np.random.default_rng(4).uniform(-30, 5, n - 2)]
    matrix = similar([[[40.0, 7.0], [-7.0, 40.0]], *rest], 5)
    u = np.ones(n)
    assert stiffness_index(lambda v: matrix @ v, u) == pytest.approx(
        40, rel=1e-6)


@pytest.mark.parametrize('stiffest', [-1e6, 1e6])
def test_si_of_a_stiff_spectrum(stiffest):
    """At its other end the eigenvalues lie too close for ARPACK."""
    rest = [[[v]] for v in -np.logspace(0, 5, 299)]
    matrix = similar([[[stiffest]], *rest], 6)
    u = torch.randn(300, dtype=torch.float64)
    assert stiffness_index(lambda v: matrix @ v, u) == pytest.approx(
        1e6, rel=1e-6)


@pytest.mark.parametrize('mu', [0.5, 5.0, 100.0])
@pytest.mark.parametrize('state', [(2.0, 0.0), (0.3, -1.2)])
def test_si_of_van_der_pol(mu, state):
    a, b = state
    jacobian = np.array([[0, 1], [-2 * mu * a * b - 1, mu * (1 - a**2)]])

    def rhs(u):
        return torch.stack([u[1], mu * (1 - u[0]**2) * u[1] - u[0]])

    expected = np.abs(np.linalg.eigvals(jacobian).real).max()
    assert stiffness_index(rhs, state) == pytest.approx(expected, rel=1e-6)


def test_si_of_many_van_der_pol_systems():
    """ARPACK on 150 independent oscillators: the stiffest decides."""
    rng = np.random.default_rng(6)
    mu = torch.tensor(rng.uniform(0.5, 20, 150))
    u = torch.tensor(rng.uniform(-2, 2, (2, 150)))

    def rhs(u):
        return torch.stack([u[1], mu * (1 - u[0]**2) * u[1] - u[0]])

    expected = max(
        np.abs(
            np.linalg.eigvals([[0, 1], [-2 * m * a * b - 1,
                                        m * (1 - a**2)]]).real).max()
        for m, a, b in zip(mu.tolist(), *u.tolist()))
    assert stiffness_index(rhs, u) == pytest.approx(expected, rel=1e-6)


class Cube(torch.autograd.Function):
    """A custom function that forward mode can pass."""

    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        x, = ctx.saved_tensors
        return 3 * x**2 * grad

    @staticmethod
    def jvp(ctx, tangent):
        x, = ctx.saved_tensors
        return 3 * x**2 * tangent


@pytest.mark.parametrize('n', [5, 200])
def test_si_through_custom_autograd_function(n):
    u = torch.linspace(0.5, 3, n, dtype=torch.float64)
    assert stiffness_index(lambda v: -Cube.apply(v), u) == pytest.approx(
        27, rel=1e-6)


@pytest.mark.parametrize('n', [5, 200])
def test_si_of_a_block_that_starts_at_zero(n):
    """``zero_init_residual`` makes f and its Jacobian zero."""
    u = torch.rand(n, dtype=torch.float64)
    assert stiffness_index(lambda v: 0 * v, u) == 0


@pytest.mark.parametrize('attention', [None, dict(type='StepNet')])
def test_si_of_a_real_block(attention):
    """f of a ResNet-20 block at a real state, against the dense Jacobian."""
    pytest.importorskip('mmpretrain')
    from mmstepnet.models import StepResNetCIFAR
    torch.manual_seed(0)
    model = StepResNetCIFAR(20, attention=attention, preact=True).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    model.eval()
    block = model.layer3[1]
    x = torch.randn(1, 64, 2, 2, dtype=torch.float64)

    def rhs(v):
        return block(v) - v

    dense = torch.func.jacrev(rhs)(x).reshape(256, 256)
    expected = torch.linalg.eigvals(dense).real.abs().max().item()
    assert stiffness_index(rhs, x) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize('attention', [
    MetricAttention, L2Attention, DotProductAttention])
def test_si_of_attention_over_points(attention):
    """Whose fused kernels know no forward-mode derivative."""
    layer = perturb(attention(8, num_heads=2)).double()
    x = torch.randn(1, 6, 8, dtype=torch.float64)
    rows = []
    for i in range(x.numel()):
        u = x.clone().requires_grad_()
        layer(u).flatten()[i].backward()
        rows.append(u.grad.flatten())
    values = np.linalg.eigvals(torch.stack(rows).numpy())
    assert stiffness_index(layer, x) == pytest.approx(
        np.abs(values.real).max(), rel=1e-9)


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
        eigenvalues = np.append(stiffest, others)
        matrix = torch.tensor(q * eigenvalues @ q.T)
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


def test_si_of_a_rhs_that_works_in_place():
    def rhs(v):
        v += 1
        return -v**3

    u = torch.linspace(0, 1, 3).double()
    given = u.clone()
    assert stiffness_index(rhs, u) == pytest.approx(3 * 2**2)
    assert torch.equal(u, given)


def test_si_bad_input():
    u = torch.ones(4, dtype=torch.float64)
    with pytest.raises(ValueError, match=r'rhs\(u\) has shape \(2,\)'):
        stiffness_index(lambda v: v[:2], u)
    with pytest.raises(ValueError, match=r'rhs\(u\) holds NaN'):
        stiffness_index(lambda v: (v - 2).log(), u)
    with pytest.raises(ValueError, match='u holds NaN'):
        stiffness_index(lambda v: v, [1.0, np.nan])
    matrix = torch.randn(200, 200).double()
    with pytest.raises(RuntimeError, match='raise maxiter or ncv'):
        stiffness_index(lambda v: matrix @ v, matrix[0], maxiter=1)
