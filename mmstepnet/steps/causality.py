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

    One block of each class is run on states that differ in one token. Where
    the model is on the meta device, a copy of the block with random weights
    is.

    Args:
        model (nn.Module): The model.
        example (Tensor | tuple | dict): What it is called with.
        plans (dict): Plans of its blocks by name.

    Returns:
        list[str]: Names of the blocks of such a class.
    """
    modules = {name: model.get_submodule(name) for name, (plan, _)
               in plans.items() if plan.places[0].dims == 3}
    kinds = {type(block): name for name, block in reversed(modules.items())}
    calls: dict[str, tuple] = {}
    handles = []
    for name in kinds.values():
        def take_down(block, args, kwargs, name=name):
            calls.setdefault(name, copy.deepcopy((args, kwargs)))

        handles.append(modules[name].register_forward_pre_hook(
            take_down, with_kwargs=True))
    meta = any(p.is_meta for p in model.parameters())
    causal = set()
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
            if _is_causal(block, *call, plans[name][0].places[0]):
                causal.add(type(modules[name]))
    return [name for name, block in modules.items() if type(block) in causal]


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


def _is_causal(block: nn.Module, args: tuple, kwargs: dict,
               place: Place) -> bool:
    """Whether tokens move those behind them alone."""
    axis = 3 - place.batch - place.channels
    key = None if args else next(iter(kwargs))
    x = args[0] if args else kwargs[key]
    if not isinstance(x, Tensor) or x.dim() != 3:
        return False

    def run(x: Tensor) -> Tensor:
        a, k = copy.deepcopy((args, kwargs))  # they may hold a cache
        out = block(x, *a[1:], **k) if a else block(**{**k, key: x})
        while not isinstance(out, Tensor):
            out = next(iter(out.values() if isinstance(out, dict) else out))
        return out

    before, later = run(x.clone()), False
    length = x.shape[axis]
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
