"""Which blocks of tokens are a decoder's, found by trying."""

import copy
from collections.abc import Iterable
from functools import partial

import torch
import torch.nn as nn
from torch import Tensor
from torch.utils._pytree import tree_map_only

from .examples import call_of
from .finding import EAGER, hooked, in_mode
from .own_forward import Place, Plan, without_checkpoint
from .places import modules_by_name

SCALARS = bool, int, float, str, type(None)


def causal_blocks(model: nn.Module, example: object,
                  plans: dict[str, tuple[Plan, Plan]]) -> list[str]:
    """Blocks in which no token sees a later one, found by trying.

    Blocks that differ in weights alone are tried once: one class may stand in
    an encoder and, with other arguments, in a decoder. Where the model is on
    the meta device, a copy of the block with random weights is tried.

    Args:
        model (nn.Module): The model.
        example (Tensor | tuple | dict): What it is called with.
        plans (dict): Plans of its blocks by name.

    Returns:
        list[str]: Their names.

    Raises:
        ValueError: It cannot be told, as from an example of one token.
    """
    modules = {name: module for name, module in modules_by_name(model).items()
               if name in plans and plans[name][0].places[0].dims == 3}
    calls: dict[str, tuple[tuple, dict]] = {}

    def take_down(name: str, block: nn.Module, *call) -> None:
        calls.setdefault(name, copy.deepcopy(call))

    handles = [block.register_forward_pre_hook(
        partial(take_down, name), with_kwargs=True)
        for name, block in modules.items()]
    meta = any(p.is_meta for p in model.parameters())
    known: dict[tuple, bool] = {}
    with EAGER, in_mode(model, False), torch.random.fork_rng([]):
        with hooked(handles), torch.no_grad():
            if handles:
                args, kwargs = call_of(
                    example, device=meta and 'meta' or None)
                model(*args, **kwargs)
        kinds = {name: _kind(modules[name], call)
                 for name, call in calls.items()}
        for name, kind in kinds.items():
            if kind in known:
                continue
            block, call = modules[name], calls[name]
            place = plans[name][0].places[0]
            if meta:
                block = copy.deepcopy(block).to_empty(device='cpu')
                _give_numbers((*block.parameters(), *block.buffers()))
                call = tree_map_only(Tensor, _random, call)
            found = _is_causal(name, block, call[0], call[1], place)
            if found is None and not meta:  # an attention may be saturated
                block = copy.deepcopy(block)
                _give_numbers(block.parameters())
                found = _is_causal(name, block, call[0], call[1], place)
            known[kind] = bool(found)
    return [name for name, kind in kinds.items() if known[kind]]


def _kind(block: nn.Module, call: tuple) -> tuple:
    """What blocks share that differ in weights alone."""
    settings = [
        (name, key, value if isinstance(value, SCALARS) else id(value))
        for name, module in block.named_modules()
        for key, value in vars(module).items()
        if isinstance(value, SCALARS) or callable(value)
    ]
    given = tree_map_only(Tensor, lambda t: (t.shape, t.dtype), call)
    return type(block), repr(block), tuple(settings), str(given)


def _random(t: Tensor) -> Tensor:
    t = torch.empty_like(t, device='cpu')
    return t.normal_() if t.is_floating_point() else t.zero_()


@torch.no_grad()
def _give_numbers(weights: Iterable[Tensor]) -> None:
    """Weights under which no attention saturates."""
    for t in weights:
        values = _random(t)
        if t.is_floating_point():
            values = values * t[0].numel()**-0.5 if t.dim() > 1 else (
                1 + 0.1 * values)
        t.copy_(values)


@torch.enable_grad()
def _is_causal(name: str, block: nn.Module, args: tuple, kwargs: dict,
               place: Place) -> bool | None:
    """Whether tokens reach those behind them alone; None if no others at all.

    By gradients, which show where a value is too small to be seen.
    """
    axis = 3 - place.batch - place.channels
    given = {**dict(enumerate(args)), **kwargs}
    key = next((k for k, t in given.items() if isinstance(t, Tensor)
                and t.is_floating_point() and t.dim() == 3
                and t.shape[place.channels] == place.width), None)
    if key is None:  # it makes tokens of a map
        return False
    x = given[key]
    length = x.shape[axis]
    cannot = (f'{name} ({type(block).__name__}): it cannot be told whether it '
              f"is a decoder's block, whose tokens see no later ones, ")
    if length < 2:
        raise ValueError(
            f'{cannot}from a state of one token; give an example= of several, '
            f'or leave the block out by blocks=')
    x = x.detach().requires_grad_()
    given[key] = x.clone()  # which the block may write to
    out = without_checkpoint(block)(*(given[k] for k in range(len(args))),
                                    **{k: given[k] for k in kwargs})
    while not isinstance(out, Tensor):
        out = next(iter(out.values() if isinstance(out, dict) else out))
    if not out.requires_grad:
        raise ValueError(f'{cannot}since its forward has no gradient; leave '
                         f'it out by blocks=')

    def reaches(target: slice, source: slice) -> bool:
        """Whether tokens of a half of x reach a half of the result."""
        part = out.transpose(0, axis)[target]
        try:
            grad, = torch.autograd.grad(part, x, torch.randn_like(part),
                                        retain_graph=True, allow_unused=True)
        except RuntimeError as error:
            raise ValueError(
                f'{cannot}since PyTorch cannot train it '
                f'({str(error).partition(":")[0]}); leave it out by blocks='
            ) from error
        if grad is None:
            return False
        if not grad.isfinite().all():
            raise ValueError(f'{cannot}since its gradient is not finite; '
                             f'leave it out by blocks=')
        return bool(grad.transpose(0, axis)[source].any())

    # Windows may end at one of these places, but not at each.
    later = None
    for half in dict.fromkeys((length // 2, length // 3 or 1, 1)):
        before, behind = slice(None, half), slice(half, None)
        if reaches(before, behind):
            return False
        later = later or reaches(behind, before) or None
    return later
