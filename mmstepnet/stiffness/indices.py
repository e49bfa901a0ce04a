"""Stiffness of one step: NSI of features, SAI of observations, SI of an ODE.

Understanding Self-attention Mechanism via Dynamical System Perspective,
ICCV 2023, https://arxiv.org/abs/2308.09939

Every function takes tensors or NumPy arrays, computes in float64, and gives
back float64: a tensor if any argument was one, else a NumPy array.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np
import torch
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigs
from torch import Tensor

from .checks import Array, ArrayLike, check_shape, first_index, to_float64

DENSE_SIZE = 128
"""Up to this size :func:`stiffness_index` computes all eigenvalues."""


def neural_stiffness_index(
    x: ArrayLike, x_next: ArrayLike, step: ArrayLike = 1.0
) -> Array:
    r"""Neural stiffness index of one residual block, Eq. 4.

    .. math::
        \zeta(x_t) = \frac{1}{\lVert x_t \rVert_2}
        \left\lVert \frac{x_{t+1} - x_t}{\Delta t} \right\rVert_2

    Args:
        x (Tensor | ndarray): States x_t, (N, ...).
        x_next (Tensor | ndarray): States x_{t+1}, as large as ``x``. Before
            the block's last activation, the residual is f ⊗ Δt exactly.
        step (Tensor | ndarray | float): Attention values Δt, broadcastable
            to ``x``. Defaults to 1.0, a plain block.

    Returns:
        Tensor | ndarray: NSI of each sample over all other dimensions, (N,).
        Where x_t = x_{t+1} = 0, nothing moves and it is 0.

    Raises:
        ValueError: Shapes differ, values are not finite, a step is 0, or a
            state of norm 0 moves (its index would be infinite).
        RuntimeError: ``step`` does not broadcast to ``x``.

    Example:
        >>> import numpy as np
        >>> neural_stiffness_index(np.array([[3., 4.]]), np.array([[3., 6.]]))
        array([0.4])
    """
    (x, x_next, step), give_back = to_float64(x=x, x_next=x_next, step=step)
    check_shape('x', x, 'N' + 'd' * max(x.dim() - 1, 0))
    check_shape('x_next', x_next, x.shape)
    return give_back(_relative_norm((x_next - x) / step.expand(x.shape), x))


def simplified_stiffness(u: ArrayLike, t: ArrayLike) -> Array:
    """Finite difference of observations, the simplified SAI of §2.1.2.

    Args:
        u (Tensor | ndarray): Observed states, (T, d).
        t (Tensor | ndarray): Their times, increasing, (T,).

    Returns:
        Tensor | ndarray: (u_{i+1} - u_i) / (t_{i+1} - t_i), (T - 1, d).

    Raises:
        ValueError: Shapes do not fit, times do not increase, or values are
            not finite.
    """
    (u, t), give_back = to_float64(u=u, t=t)
    return give_back(_finite_difference(u, t))


def stiffness_aware_index(u: ArrayLike, t: ArrayLike) -> Array:
    r"""Stiffness-aware index of observations, Eq. 3.

    .. math::
        \zeta_{\mathrm{SAI}}(u_i) = \frac{1}{\lVert u_i \rVert_2}
        \left\lVert \frac{u_{i+1} - u_i}{t_{i+1} - t_i} \right\rVert_2

    Args:
        u (Tensor | ndarray): Observed states, (T, d).
        t (Tensor | ndarray): Their times, increasing, (T,).

    Returns:
        Tensor | ndarray: Index at every observation but the last, (T - 1,),
        in units of 1 / time. Where nothing moves away from 0, it is 0.

    Raises:
        ValueError: As :func:`simplified_stiffness`, or a state of norm 0
            moves (its index would be infinite).
    """
    (u, t), give_back = to_float64(u=u, t=t)
    return give_back(_relative_norm(_finite_difference(u, t), u[:-1]))


def stiffness_index(
    rhs: Callable[[Tensor], Tensor], u: ArrayLike, **arpack
) -> float:
    r"""Stiffness index of du/dt = rhs(u) at one state, §2.1.2.

    .. math::
        \zeta_{\mathrm{SI}}(u) = \max_i |\mathrm{Re}\, \lambda_i|

    over the eigenvalues of rhs's Jacobian. Up to :data:`DENSE_SIZE` values
    they are all computed; above, ARPACK looks for those of largest modulus
    and, unless these decide, of largest and of smallest real part, and the
    Jacobian is only ever multiplied by vectors
    (``torch.func.jvp``). For a residual block f, ``rhs`` is f.

    Args:
        rhs (Callable): Right-hand side, from a tensor shaped as ``u`` to one
            of the same shape. Custom autograd functions in it need a
            ``jvp``. PyTorch's scaled dot product runs as its N x N formula.
        u (Tensor | ndarray): State, any shape; for networks one sample with
            its batch dimension. A float32 or float64 tensor is kept in its
            dtype, which the parameters of ``rhs`` must share; anything else
            becomes float64.
        **arpack: Arguments of :func:`scipy.sparse.linalg.eigs`, such as
            ``tol``, ``ncv`` or ``maxiter``. ``k`` eigenvalues are computed
            at each end, by default 6: fewer miss one of a cluster.

    Returns:
        float: Stiffness index, in units of 1 / time.

    Raises:
        ValueError: A value is not finite, or rhs changes the size.
        scipy.sparse.linalg.ArpackNoConvergence: ARPACK has not converged;
            a larger ``maxiter`` or ``ncv``, or a looser ``tol``, helps.

    Example:
        >>> matrix = torch.tensor([[-1., 100.], [-100., -1.]]).double()
        >>> round(stiffness_index(lambda u: matrix @ u, [1., 0.]), 6)
        1.0
    """
    if not isinstance(u, Tensor) or u.dtype != torch.float32:
        u = to_float64(u=u)[0][0]
    u = u.detach()

    @torch.no_grad()
    def product(vector: np.ndarray) -> np.ndarray:
        tangent = torch.from_numpy(np.ascontiguousarray(vector)).to(u)
        # The fused kernels of attention have no forward-mode derivative.
        with _attention_by_formula():
            value, change = torch.func.jvp(
                lambda v: rhs(v.clone()), (u,), (tangent.view_as(u),)
            )[:2]
        if not (value + change).isfinite().all():
            raise ValueError('rhs(u) or its derivative holds NaN or infinity')
        return change.reshape(-1).cpu().numpy()

    if u.numel() <= DENSE_SIZE:
        jacobian = np.stack([product(e) for e in np.eye(u.numel())], axis=1)
        return float(np.abs(np.linalg.eigvals(jacobian).real).max())
    jacobian = LinearOperator(
        (u.numel(),) * 2,
        matvec=product,
        dtype=np.float32 if u.dtype == torch.float32 else np.float64,
    )
    # ARPACK would draw another start at each call.
    start = np.random.default_rng(0).standard_normal(u.numel())
    if not product(start).any():  # a Jacobian of zeros, which it refuses
        return 0.0
    arpack = {'k': 6, 'v0': start, 'return_eigenvectors': False, **arpack}
    largest = 0.0
    for which in ('LM', 'LR', 'SR'):
        try:
            values = eigs(jacobian, which=which, **arpack)
        except ArpackNoConvergence:
            if which == 'LM':  # eigenvalues of almost one modulus
                continue
            raise
        largest = max(largest, float(np.abs(values.real).max()))
        # The modulus of the others, hence their real part, is smaller.
        if which == 'LM' and largest >= np.abs(values).min():
            break
    return largest


def _relative_norm(change: Tensor, state: Tensor) -> Tensor:
    """Norm of each change over that of its state, (N, ...) -> (N,).

    Raises:
        ValueError: A ratio is not finite.
    """
    changes, norms = (
        torch.linalg.vector_norm(t.reshape(len(t), -1), dim=1)
        for t in (change, state)
    )
    index = torch.where(changes == 0, changes, changes / norms)
    bad = ~index.isfinite()
    if bad.any():
        raise ValueError(
            f'the index is not finite at {first_index(bad)}: a state of norm '
            f'0 changes, or a step is 0, by which Eq. 4 divides; leave it out'
        )
    return index


def _finite_difference(u: Tensor, t: Tensor) -> Tensor:
    check_shape('u', u, 'Td')
    check_shape('t', t, u.shape[:1])
    interval = t.diff()
    if (interval <= 0).any():
        raise ValueError(
            f'times must increase, but do not at '
            f'{first_index(interval <= 0)}; sort them and drop duplicates'
        )
    return u.diff(dim=0) / interval[:, None]


def _attention_by_formula() -> AbstractContextManager:
    try:
        from torch.nn.attention import SDPBackend, sdpa_kernel
    except ImportError:  # PyTorch before 2.3
        return torch.backends.cuda.sdp_kernel(
            enable_flash=False, enable_mem_efficient=False
        )
    return sdpa_kernel(SDPBackend.MATH)
