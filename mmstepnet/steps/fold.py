"""Folding for inference: norms into convolutions, adaptors into a line."""

import copy
import warnings
from collections import Counter
from functools import partial
from typing import Any

import torch
import torch.nn as nn
from torch import Tensor, fx
from torch.nn.utils.fusion import fuse_conv_bn_eval

from mmstepnet.attentions import FoldedStepNet, OursNoNorm, StepNet

from ..blocks import qualified_name
from .generated import class_of
from .own_forward import OwnForwardBlock
from .places import modules_by_name
from .residual import ResidualStep
from .step_block import check_unsharded
from .tail.reading import is_as_made

FROZEN_NORM = 'torchvision.ops.misc.FrozenBatchNorm2d'
TIMM_NORM = 'timm.layers.norm_act.BatchNormAct2d'
"""A BN with drop and activation behind it."""

class _Tracer(fx.Tracer):
    """Follows what one module does with its children, who are not entered."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module
        # With all its names: one alone could not be exchanged.
        self.names = {}
        for name, child in module.named_modules(remove_duplicate=False):
            self.names.setdefault(child, []).append(name)

    def path_of_module(self, module: nn.Module) -> str:
        return self.names[module][0]

    def is_leaf_module(self, module: nn.Module, name: str) -> bool:
        # A step calls the norm that its block hands to it.
        return (module is not self.module
                and not isinstance(module, ResidualStep))

    def create_arg(self, value: object) -> object:
        if isinstance(value, (Tensor, nn.Module)):
            return self.create_node('get_attr', 'constant', (), {})
        return super().create_arg(value)

    def to_bool(self, value: fx.Proxy) -> bool:
        # Blocks that may checkpoint themselves ask for it.
        if value.node.args[1:] == ('requires_grad', ):
            return False
        return super().to_bool(value)


def fold(model: nn.Module) -> nn.Module:
    """Fold a model for inference; the outputs stay those of ``eval()``.

    Each convolution takes in the BN right behind it, and each StepNet adaptor
    becomes :class:`FoldedStepNet`. The result runs and exports as any module;
    it cannot be trained on. What cannot be folded exactly (IEBN, GroupNorm,
    other attentions, a BN without running statistics) stays as it is, and so
    do the norms of a module whose ``forward`` torch.fx cannot trace. So the
    result is exact but for rounding: below 1e-5 of the outputs in float32. In
    half precision weights are rounded anew, which a warning says.

    Args:
        model (nn.Module): A model with residual steps, of this package or put
            in by :func:`~mmstepnet.steps.insert_steps`, or one that has such a
            model in it. It is left as it was.

    Returns:
        nn.Module: A folded copy, in eval mode.

    Raises:
        TypeError: There is no :class:`ResidualStep` in ``model``.
        RuntimeError: A ``forward`` was set on a module, whose copy might run
            that of the original, or the model is in DDP or FSDP.
    """
    if not any(isinstance(m, ResidualStep) for m in model.modules()):
        raise TypeError(
            'fold expects a model with residual steps, such as StepResNet or '
            f'what insert_steps made, got {type(model).__name__}; for other '
            f'models see torch.nn.utils.fuse_conv_bn_eval')
    check_unsharded(model)
    for name, module in modules_by_name(model).items():
        if 'forward' in vars(module):
            raise RuntimeError(
                f'{name or "the model"} ({type(module).__name__}) has a '
                f'forward of its own, set on the object (hooks of accelerate '
                f'do so), which a folded copy would pass by or run in the '
                f'original; fold before, or take off what set it (del '
                f'module.forward)')
    half = {p.dtype for p in model.parameters() if p.is_floating_point()
            and torch.finfo(p.dtype).bits < 32}
    if half:
        warnings.warn(
            f'fold is not exact in {", ".join(sorted(map(str, half)))}, in '
            f'which it rounds weights anew: fold in float32 and cast then',
            stacklevel=2)
    model = copy.deepcopy(model)
    model.train(False)  # eval() of some hosts returns nothing
    for module in list(model.modules()):
        if any(_is_norm(child) for child in module.modules()):
            for conv, norm in _pairs(module):
                _fold_norm(module, conv, norm)
        attention = getattr(module, 'attention', None)
        if _is_foldable(attention):
            module.attention = FoldedStepNet(attention)
    model.train(False)
    return model


def _pairs(module: nn.Module) -> list[tuple[str, str]]:
    """Names of convolutions and of the norms that alone see what they give.

    Of the module's children, and of theirs where it calls these itself.
    """
    tracer = _Tracer(module)
    # Its own, whose additions nobody takes over.
    run = partial(module.host.forward, module) if isinstance(
        module, OwnForwardBlock) else module
    try:
        graph = tracer.trace(lambda x: run(x))
    except Exception:  # of a forward that asks what a trace does not know
        return []
    calls: list[Any] = [
        node for node in graph.nodes if node.op == 'call_module']
    called = Counter(node.target for node in calls)
    once = {names[0]: child for child, names in tracer.names.items()
            if len(names) == 1 and called[names[0]] <= 1
            and is_as_made(child)}
    pairs = []
    for norm in calls:
        if (not _is_norm(once.get(norm.target)) or norm.kwargs
                or len(norm.args) != 1):
            continue
        before = norm.args[0]
        if before not in calls or len(before.users) > 1:
            continue
        name = before.target
        while type(once.get(name)) is nn.Sequential and len(once[name]):
            name = f'{name}.{list(once[name]._modules)[-1]}'
        if (type(once.get(name)) is nn.Conv2d
                and (name == before.target or not called[name])):
            pairs.append((name, norm.target))
    return pairs


def _is_foldable(attention: Any) -> bool:
    """Whether it is StepNet's adaptor that is nothing else."""
    if type(attention) not in (StepNet, OursNoNorm) or (
            attention.iebn != 'appendix') or not all(
            map(is_as_made, attention.modules())):
        return False
    norm = attention.bn
    return type(norm) is nn.Identity or (
        type(norm) in (nn.BatchNorm1d, nn.SyncBatchNorm)
        and norm.running_mean is not None)


def _is_norm(module: Any) -> bool:
    """Whether it is a BN that is nothing else, but for timm's activation."""
    kind = class_of(module)
    return (kind in (nn.BatchNorm2d, nn.SyncBatchNorm)
            or qualified_name(kind) in (FROZEN_NORM, TIMM_NORM)
            ) and module.running_mean is not None


def _fold_norm(module: nn.Module, conv_name: str, norm_name: str) -> None:
    conv: Any = module.get_submodule(conv_name)
    norm: Any = module.get_submodule(norm_name)
    rest: nn.Module = nn.Identity()
    if qualified_name(class_of(norm)) == TIMM_NORM:
        rest = nn.Sequential(norm.drop, norm.act)
    for name, child in ((conv_name, fuse_conv_bn_eval(conv, norm)),
                        (norm_name, rest)):
        owner, _, name = name.rpartition('.')
        setattr(module.get_submodule(owner), name, child)
