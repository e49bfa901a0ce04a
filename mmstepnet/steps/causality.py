"""Which blocks of tokens are a decoder's, found by trying."""

import copy

import torch
import torch.nn as nn
from torch import Tensor
from torch.utils._pytree import tree_map_only

from .examples import call_of, in_mode
from .finding import EAGER
from .own_forward import Place, Plan


def causal_blocks(model: nn.Module, example: object,
                  plans: dict[str, tuple[Plan, Plan]]) -> list[str]:
    """Blocks in which no token sees a later one, found by trying.

    Each block is run on states that differ in one token: one class may stand
    in an encoder and, with other arguments, in a decoder. Where the model is
    on the meta device, a copy of the block with random weights is.

    Args:
        model (nn.Module): The model.
        example (Tensor | tuple | dict): What it is called with.
        plans (dict): Plans of its blocks by name.

    Returns:
        list[str]: Their names.

    Raises:
        ValueError: The example has one token.
    """
    modules = {name: model.get_submodule(name) for name, (plan, _)
               in plans.items() if plan.places[0].dims == 3}
    calls: dict[str, tuple] = {}
    handles = []
    for name, block in modules.items():
        def take_down(block, args, kwargs, name=name):
            calls.setdefault(name, copy.deepcopy((args, kwargs)))

        handles.append(block.register_forward_pre_hook(
            take_down, with_kwargs=True))
    meta = any(p.is_meta for p in model.parameters())
    causal = []
    with EAGER, in_mode(model, False), torch.no_grad(), (
            torch.random.fork_rng([])):
        try:
            if handles:
                args, kwargs = call_of(example, device=meta and 'meta' or None)
                model(*args, **kwargs)
        finally:
            for handle in handles:
                handle.remove()
        for name, call in calls.items():
            block = modules[name]
            if meta:
                block = _with_numbers(copy.deepcopy(block).to_empty(
                    device='cpu'))
                call = tree_map_only(Tensor, _random, call)
            if _is_causal(name, block, *call, plans[name][0].places[0]):
                causal.append(name)
    return causal


def _random(t: Tensor) -> Tensor:
    t = torch.empty_like(t, device='cpu')
    return t.normal_() if t.is_floating_point() else t.zero_()


def _with_numbers(block: nn.Module) -> nn.Module:
    """Give a block weights under which no attention saturates."""
    for t in (*block.parameters(), *block.buffers()):
        values = _random(t)
        if t.is_floating_point():
            values = values * t[0].numel()**-0.5 if t.dim() > 1 else (
                1 + 0.1 * values)
        t.copy_(values)
    return block


def _is_causal(name: str, block: nn.Module, args: tuple, kwargs: dict,
               place: Place) -> bool:
    """Whether tokens move those behind them alone."""
    axis = 3 - place.batch - place.channels
    given = {**dict(enumerate(args)), **kwargs}
    key = next((k for k, t in given.items() if isinstance(t, Tensor)
                and t.is_floating_point() and t.dim() == 3
                and t.shape[place.channels] == place.width), None)
    if key is None:  # it makes tokens of a map
        return False
    x = given[key]
    length = x.shape[axis]
    if length < 2:
        raise ValueError(
            f'{name} is given one token, so that it cannot be told whether it '
            f"is a decoder's block, whose tokens see no later ones; give an "
            f'example= of several tokens, or leave the block out by blocks=')

    def run(x: Tensor) -> Tensor:
        now = {**copy.deepcopy(given), key: x}  # they may hold a cache
        out = block(*(now[k] for k in range(len(args))),
                    **{k: now[k] for k in kwargs})
        while not isinstance(out, Tensor):
            out = next(iter(out.values() if isinstance(out, dict) else out))
        return out

    before, later = run(x.clone()), False
    for at in {length - 1, length // 2, length // 3, 1} & set(range(length)):
        moved = x.clone()
        moved.select(axis, at).add_(torch.randn_like(moved.select(axis, at)))
        change = (run(moved) - before).abs().amax(
            [d for d in range(3) if d != axis])
        limit = 1e-6 * change.max()
        if (change[:at] > limit).any():
            return False
        later |= bool((change[at + 1:] > limit).any())
    return later
