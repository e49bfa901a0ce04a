"""Who may inform whom: the masks of information propagation."""

import torch
import torch._C._functorch as functorch
from torch import Tensor

from mmstepnet.torch_version import has_values, is_compiling


def check_mask(
    mask: Tensor | None,
    receivers: int,
    sources: int,
    is_causal: bool = False,
    lead: tuple[int, ...] = (),
) -> Tensor | None:
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
        raise TypeError(
            'mask must be a bool tensor, True where j may inform '
            f'i, got {got}; an additive mask becomes mask == 0, '
            'one of 1 where j may inform i becomes mask == 1'
        )
    wanted = (*lead, receivers, sources)
    if mask.is_sparse:
        return _check_edges(mask, wanted[-2:], is_causal)
    if not 2 <= mask.ndim <= len(wanted) or any(
        own not in (1, size)
        for own, size in zip(mask.shape[::-1], wanted[::-1])
    ):
        raise ValueError(
            f'mask must broadcast to {wanted}, True where source '
            f'j may inform receiver i, got {tuple(mask.shape)}; '
            'a mask of sources alone is (..., 1, M)'
        )
    seen = mask.tril() if is_causal and mask.shape[-2] > 1 else mask
    _refuse_unless(
        seen.any(-1),
        'a row of the mask leaves no source, so that its softmax is not '
        'defined; True means that a source informs, so give ~mask of one '
        "that says whom to leave out, as those of PyTorch's modules do, or "
        'let an isolated point inform itself (set the diagonal)',
    )
    return mask


def informed_rows(mask: Tensor, receivers: int) -> Tensor:
    """Receivers that a mask of sources leaves one beside ``is_causal``.

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


def _refuse_unless(good: Tensor, message: str) -> None:
    """Raise a ValueError, on a CPU, for a mask that is not good everywhere.

    A compiled or exported graph cannot branch on values, and a GPU would be
    waited for at each call. There the device raises the error when it runs.
    Under vmap all samples are checked.
    """
    while not is_compiling() and functorch.is_functorch_wrapped_tensor(good):
        good = functorch.get_unwrapped(good)
    good = good.all()
    if is_compiling() or good.device.type != 'cpu' or not has_values(good):
        torch._assert_async(good, message)
    elif not good:
        raise ValueError(message)


def _check_edges(
    mask: Tensor, shape: tuple[int, ...], is_causal: bool
) -> Tensor:
    if tuple(mask.shape) != shape or is_causal:
        raise ValueError(
            f'a sparse mask must be of shape {shape} and stand '
            f'without is_causal, got {tuple(mask.shape)}, '
            f'is_causal={is_causal}; a batch of graphs is one '
            'graph of several parts, and edges with j > i can '
            'be left out'
        )
    mask = mask.coalesce()  # a GPU is waited for unless it is already
    _refuse_unless(
        mask.values(),
        'a sparse mask stores the edges alone, and this '
        'one stores False too; build it from the True ones',
    )
    if not is_compiling():
        informed = torch.zeros(
            shape[0], dtype=torch.bool, device=mask.device
        ).index_fill_(0, mask.indices()[0], True)
        _refuse_unless(
            informed,
            'a node has no neighbour in the sparse mask, so '
            'that its softmax is not defined; add self-loops, or drop it',
        )
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
        ValueError: ``edges`` is not (E, 2) int64.
        RuntimeError: It names a node that is not there.
    """
    if edges.ndim != 2 or edges.shape[1] != 2 or edges.dtype != torch.int64:
        raise ValueError(
            'edges must be (E, 2), int64, got '
            f'{tuple(edges.shape)}, {edges.dtype}; '
            "PyTorch Geometric's edge_index is edges.T"
        )
    loops = torch.arange(nodes, device=edges.device)
    pairs = torch.cat([edges.t(), edges.t().flip(0), loops.expand(2, -1)], 1)
    pairs = torch.unique(pairs, dim=1)
    # The constructor's own argument check_invariants warns, whatever it says.
    with torch.sparse.check_sparse_tensor_invariants():
        return torch.sparse_coo_tensor(
            pairs,
            torch.ones(pairs.shape[1], dtype=torch.bool, device=edges.device),
            (nodes, nodes),
            is_coalesced=True,
        )
