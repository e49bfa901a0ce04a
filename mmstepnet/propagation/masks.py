"""Who may inform whom: the masks of information propagation."""

from collections.abc import Callable

import torch
import torch._C._functorch as functorch
from torch import Tensor

from mmstepnet.torch_version import has_values, is_compiling

REMEDY = ('its softmax is not defined. Let an isolated point inform itself '
          '(set the diagonal), or drop it')


def check_mask(mask: Tensor | None,
               receivers: int,
               sources: int,
               is_causal: bool = False,
               lead: tuple[int, ...] = ()) -> Tensor | None:
    r"""Refuse a mask that does not fit or leaves a row without a source.

    Args:
        mask (Tensor, optional): Bool, True where point j may inform point i.
            Dense, broadcastable to (\*lead, N, M): a key padding mask is
            (..., 1, M). Or sparse COO (N, M), the neighbourhood of a mesh or
            graph, whose stored entries are its edges.
        receivers (int): Number N of points that are informed.
        sources (int): Number M of points that inform.
        is_causal (bool): Point i is informed by points j <= i only, counted
            from the first of both. A mask of sources, (..., 1, M), may then
            leave first points none, as padding on the left does. Defaults to
            False.
        lead (tuple[int]): Leading dimensions, as of batch and heads.

    Returns:
        Tensor, optional: The mask; a sparse one is coalesced.

    Raises:
        TypeError: The mask is not a bool tensor.
        ValueError: It does not broadcast, is sparse beside ``is_causal``,
            or some row has no source. On a GPU and in compiled code, which
            do not wait for the mask, a row without a source is an assertion
            of the device; compiled code does not look into sparse masks.
    """
    if mask is None:
        return None
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        got = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError('mask must be a bool tensor, True where j may inform '
                        f'i, got {got}; {_as_bool(mask)}')
    if mask.is_sparse:
        return _check_edges(mask, receivers, sources, is_causal)
    if mask.layout != torch.strided:
        raise ValueError(f'mask must be dense or sparse COO, got '
                         f'{mask.layout}; call mask.to_sparse_coo()')
    check_shape(mask, receivers, sources, lead)
    informed = _informed(mask, is_causal)
    _refuse_unless(
        informed.all(), f'a row of the mask leaves no source: {REMEDY}',
        lambda: _name_row(mask, informed, is_causal))
    return mask


def check_shape(mask: Tensor, receivers: int, sources: int,
                lead: tuple[int, ...]) -> None:
    r"""Refuse a dense mask that does not broadcast to (\*lead, N, M).

    Raises:
        ValueError: It does not.
    """
    wanted = (*lead, receivers, sources)
    try:
        fits = torch.broadcast_shapes(mask.shape, wanted) == wanted
    except RuntimeError:
        fits = False
    if not fits or mask.ndim < 2:
        raise ValueError(f'mask must broadcast to {wanted}, True where source '
                         f'j may inform receiver i, got {tuple(mask.shape)}; '
                         'a mask of sources alone is (..., 1, M)')


def refuse_nested(*tensors: Tensor) -> None:
    """Refuse nested tensors, of which padding and a mask make ordinary ones.

    Raises:
        TypeError: One is.
    """
    if any(t.is_nested for t in tensors):
        raise TypeError(
            'nested tensors cannot be propagated; pad them, x = torch.nested.'
            'to_padded_tensor(nested, 0.0), and give the mask of what was '
            'there, (B, 1, M): mask = (torch.arange(x.shape[1]) < '
            'lengths[:, None])[:, None]')


def informed_rows(mask: Tensor, receivers: int) -> Tensor:
    """Which receivers a mask of sources leaves one beside ``is_causal``.

    Args:
        mask (Tensor): Of sources, (..., 1, M).
        receivers (int): Number N of receivers.

    Returns:
        Tensor: Bool, (..., N).
    """
    seen = mask.squeeze(-2).cumsum(-1) > 0  # ONNX has no cummax
    if receivers == seen.shape[-1]:
        return seen
    last = torch.arange(receivers, device=mask.device)
    return seen[..., last.clamp(max=seen.shape[-1] - 1)]


def _as_bool(mask: object) -> str:
    if not isinstance(mask, Tensor) or mask.is_floating_point():
        return ('an additive one becomes mask == 0, one of 1.0 where j may '
                'inform i becomes mask == 1')
    return ('one of 1 where j may inform i becomes mask == 1, one of 1 where '
            'it may not becomes mask == 0')


def _refuse_unless(good: Tensor, message: str,
                   explain: Callable[[], str] | None = None) -> None:
    """Raise a ValueError, on a CPU, for a mask that is not good.

    A compiled or exported graph cannot branch on values, and on a GPU that
    would wait for it at each call: there the device says it, when it gets
    there. Under vmap all samples are looked at.
    """
    while not is_compiling() and functorch.is_batchedtensor(good):
        good, explain = functorch.get_unwrapped(good).all(), None
    if (is_compiling() or good.device.type != 'cpu'
            or not has_values(good)):
        torch._assert_async(good, message)
    elif not good:
        raise ValueError(explain() if explain else message)


def _informed(mask: Tensor, is_causal: bool) -> Tensor:
    if not is_causal or mask.shape[-2] == 1:
        return mask.any(-1)
    return mask.tril().any(-1)


def _name_row(mask: Tensor, informed: Tensor, is_causal: bool) -> str:
    *where, row = (~informed).nonzero()[0].tolist()
    place = f' of {tuple(where)}' if where else ''
    return (
        f'row {row}{place} of the mask, of shape {tuple(mask.shape)}, leaves '
        f"no source{' at or before it' if is_causal else ''}: {REMEDY}")


def _check_edges(mask: Tensor, receivers: int, sources: int,
                 is_causal: bool) -> Tensor:
    if tuple(mask.shape) != (receivers, sources):
        raise ValueError(f'a sparse mask must be of shape '
                         f'{(receivers, sources)}, got {tuple(mask.shape)}; '
                         'a batch of graphs is one graph of several parts')
    if is_causal:
        raise ValueError('is_causal beside a sparse mask: leave the edges '
                         'with j > i out of the mask')
    mask = mask.coalesce()  # a GPU is waited for unless it is already
    _refuse_unless(
        mask.values().all(), 'a sparse mask stores the edges alone, and this '
        'one stores False too; build it from the True ones')
    if not is_compiling():
        informed = torch.zeros(
            receivers, dtype=torch.bool, device=mask.device).index_fill_(
                0, mask.indices()[0], True)
        _refuse_unless(
            informed.all(), 'a node has no neighbour in the sparse mask',
            lambda: f'node {int((~informed).nonzero()[0])} has no neighbour '
            'in the sparse mask: its softmax is not defined. Add self-loops, '
            'or drop it')
    return mask


def neighbourhood(edges: Tensor, nodes: int) -> Tensor:
    """Build the sparse mask of an undirected graph, each node included.

    Args:
        edges (Tensor): Pairs of nodes (E, 2), int64, each edge once or in
            both directions.
        nodes (int): Number N of nodes.

    Returns:
        Tensor: Sparse COO bool mask (N, N): neighbours and the node itself.

    Raises:
        ValueError: ``edges`` is not (E, 2) int64, or names a node outside.
    """
    if edges.ndim != 2 or edges.shape[1] != 2 or edges.dtype != torch.int64:
        raise ValueError('edges must be (E, 2), int64, got '
                         f'{tuple(edges.shape)}, {edges.dtype}; '
                         "PyTorch Geometric's edge_index is edges.T")
    if len(edges) and not 0 <= int(edges.min()) <= int(edges.max()) < nodes:
        raise ValueError(f'edges name nodes {int(edges.min())} to '
                         f'{int(edges.max())}; there are {nodes}, from 0')
    loops = torch.arange(nodes, device=edges.device)
    pairs = torch.cat([edges.t(), edges.t().flip(0), loops.expand(2, -1)], 1)
    pairs = torch.unique(pairs, dim=1)
    # The constructor's own argument check_invariants warns, whatever it says.
    with torch.sparse.check_sparse_tensor_invariants():
        return torch.sparse_coo_tensor(
            pairs,
            torch.ones(pairs.shape[1], dtype=torch.bool, device=edges.device),
            (nodes, nodes),
            is_coalesced=True)
