"""Blocks of ResNets whose last norm, sum and ReLU the step takes in.

The fused step needs the last convolution, the norm, the sum and the ReLU in
one hand, and a projected identity takes a step here alone. So these blocks are
written once more, as far as their last norm. Whether a block computes what
stands here is tried when it gets its step; one that does not takes its step
where its branch ends, as all others do.
"""

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn as nn
import torch.utils.checkpoint as cp
from torch import Tensor

from mmstepnet.generated import Generated, generated_class

from .residual import ResidualStep
from .tail import ByHand, ByImage, is_as_made, read_tail


class BlockTail(NamedTuple):
    """The end of a class of blocks.

    Attributes:
        branch (Callable): ``branch(block, x)`` computes what ``end`` is
            given.
        end (Callable): ``end(block)`` is the module that returns f: the last
            norm, or what stands behind it.
        activation (str): Attribute that is applied to the sum.
    """

    branch: Callable[[Any, Tensor], Tensor]
    end: Callable[[Any], nn.Module]
    activation: str


def _timm_basic(block: Any, x: Tensor) -> Tensor:
    x = block.bn1(block.conv1(x))
    x = block.drop_block(x)
    x = block.act1(x)
    x = block.aa(x)
    x = block.conv2(x)
    if block.se is None:
        return x
    return block.bn2(x)


def _timm_bottleneck(block: Any, x: Tensor) -> Tensor:
    x = block.bn1(block.conv1(x))
    x = block.act1(x)
    x = block.bn2(block.conv2(x))
    x = block.drop_block(x)
    x = block.act2(x)
    x = block.aa(x)
    x = block.conv3(x)
    if block.se is None:
        return x
    return block.bn3(x)


def _basic(block: Any, x: Tensor) -> Tensor:
    x = block.conv1(x)
    x = _norm(block, 1)(x)
    x = block.relu(x)
    return block.conv2(x)


def _bottleneck(block: Any, x: Tensor) -> Tensor:
    first, second, third = _plugins(block)
    x = block.conv1(x)
    x = _norm(block, 1)(x)
    x = block.relu(x)
    x = _apply(first, x)
    x = block.conv2(x)
    x = _norm(block, 2)(x)
    x = block.relu(x)
    x = _apply(second, x)
    x = block.conv3(x)
    if not third:
        return x
    x = _norm(block, 3)(x)
    return _apply(third[:-1], x)


def _norm(block: Any, k: int) -> Any:
    """The norm behind a convolution, by OpenMMLab's or torchvision's name."""
    return getattr(block, f'norm{k}' if hasattr(block, 'norm1') else f'bn{k}')


def _plugins(block: Any) -> list[list[nn.Module]]:
    """MMDetection's plugins behind each of the three convolutions."""
    plugins = []
    for k in (1, 2, 3):
        names = getattr(block, f'after_conv{k}_plugin_names', ())
        plugins.append([getattr(block, name) for name in names])
    return plugins


def _apply(modules: list[nn.Module], x: Tensor) -> Tensor:
    for module in modules:
        x = module(x)
    return x


BASIC = BlockTail(_basic, lambda block: _norm(block, 2), 'relu')
BOTTLENECK = BlockTail(
    _bottleneck,
    lambda block: (_plugins(block)[2] or [_norm(block, 3)])[-1],
    'relu',
)

TAILS = {
    'timm.models.resnet.BasicBlock': BlockTail(
        _timm_basic,
        lambda block: block.bn2 if block.se is None else block.se,
        'act2',
    ),
    'timm.models.resnet.Bottleneck': BlockTail(
        _timm_bottleneck,
        lambda block: block.bn3 if block.se is None else block.se,
        'act3',
    ),
}
"""Tails of blocks by the names of their classes. No library is imported."""

for _library in (
    'torchvision.models',
    'mmpretrain.models.backbones',
    'mmdet.models.backbones',
    'mmseg.models.backbones',
    'mmpose.models.backbones',
):
    TAILS[f'{_library}.resnet.BasicBlock'] = BASIC
    TAILS[f'{_library}.resnet.Bottleneck'] = BOTTLENECK


TRIED: dict[tuple, bool] = {}
"""Whether blocks that are put together so compute what their tails say."""


class TailStep(ResidualStep):
    """The step in a block's tail, which registers nothing of the block's.

    The block hands its activation and its stochastic depth to each call, and
    runs its norm itself where the step does not take it in. So who counts,
    prunes or exchanges modules meets each once, where the host has it.

    Args:
        attention (nn.Module, optional): See :class:`ResidualStep`.
    """

    def __init__(self, attention: Any = None):
        super().__init__(attention)

    def forward(
        self,
        identity: Tensor,
        branch: Tensor,
        tail: ByHand | ByImage | None,
        activation: Any,
        drop_path: Any,
    ) -> Tensor:
        """Take the step, see :meth:`ResidualStep.take`."""
        return self.take(identity, branch, tail, activation, drop_path)


class FusedBlock(Generated):
    """A block of a ResNet that ends in a :class:`TailStep`."""

    tail: BlockTail
    step: Any
    downsample: Any

    @classmethod
    def _named_over(cls, host: type) -> tuple[str, dict[str, Any]]:
        return host.__name__, dict(tail=_tail_of(host))

    def forward(self, x: Tensor) -> Tensor:
        """Take the block's step, (N, C, H, W) -> (N, C', H', W')."""
        if getattr(self, 'with_cp', False) and x.requires_grad:
            return cp.checkpoint(self._forward, x, use_reentrant=False)
        return self._forward(x)

    def _forward(self, x: Tensor) -> Tensor:
        branch = self.tail.branch(self, x)  # first, as the hosts do
        identity = x if self.downsample is None else self.downsample(x)
        return self._end(
            identity,
            branch,
            self.tail.end(self),
            getattr(self, self.tail.activation),
        )

    def _end(
        self,
        identity: Tensor,
        branch: Tensor,
        norm: Any = None,
        activation: Any = None,
    ) -> Tensor:
        """Take the step, together with the norm where that is possible."""
        behind = activation, getattr(self, 'drop_path', None)
        tail = None
        # Who wraps or hooks the step may hand on something else.
        if type(self.step) is TailStep and is_as_made(self.step):
            tail = read_tail(self.step, identity, branch, norm, *behind)
        if tail is None and norm is not None:
            branch = norm(branch)
        return self.step(identity, branch, tail, *behind)

    def last_layer(self) -> nn.Module:
        """The layer that gives f."""
        return self.tail.end(self)

    def take_step(self) -> None:
        """Become the host's block again, in place."""
        del self.step
        self.__class__ = self.host


def put_fused_step(block: nn.Module) -> None:
    """Let a block, where it can, end in a :class:`TailStep`, in place."""
    if is_fusable(block) and not isinstance(block, FusedBlock):
        _end_in_step(block)


def _end_in_step(block: Any, attention: Any = None) -> None:
    block.__class__ = generated_class(FusedBlock, type(block))
    block.step = TailStep(attention).train(block.training)


def is_fusable(block: nn.Module) -> bool:
    """Whether a block is known, and tried, to have one of :data:`TAILS`.

    Those that end in a :class:`TailStep` already are.
    """
    if isinstance(block, FusedBlock):
        return True
    tail = _tail_of(type(block))
    if (
        tail is None
        or isinstance(block, Generated)
        or ('forward' in vars(block))
    ):
        return False
    # One trial serves all blocks that are put together alike.
    parts = []
    for name, part in block.named_modules():
        hooks = len(part._forward_hooks), len(part._forward_pre_hooks)
        parts.append((name, type(part), 'forward' in vars(part), hooks))
    key = type(block), type(block).forward, tuple(parts)
    if key not in TRIED:
        TRIED[key] = _computes(block, tail)
    return TRIED[key]


def _tail_of(cls: type) -> BlockTail | None:
    """Tail of the class whose ``forward`` a class has, if there is one."""
    parent = next(c for c in cls.__mro__ if 'forward' in vars(c))
    return TAILS.get(f'{parent.__module__}.{parent.__qualname__}')


@torch.no_grad()
def _computes(block: nn.Module, tail: BlockTail) -> bool:
    """Whether a block with a constant step computes what its tail says.

    A copy of random weights is run as it is, with half of what its branch
    returns, and as a :class:`FusedBlock`: in float32 on the CPU, whatever
    the caller's default type, device and autocast are.
    """
    try:
        with (
            torch.random.fork_rng([]),
            torch.device('cpu'),
            torch.autocast('cpu', enabled=False),
        ):
            torch.manual_seed(0)
            probe: Any = copy.deepcopy(block).to_empty(device='cpu').float()
            probe.train(False)
            for t in (*probe.parameters(), *probe.buffers()):
                if not t.is_floating_point():
                    t.zero_()
                elif t.dim() < 2:
                    t.uniform_(0.1, 1)
                else:
                    t.normal_(std=0.1)
            x = torch.randn(
                2, probe.conv1.in_channels, 8, 8, dtype=torch.float32
            )
            end: Any = tail.end(probe)
            handle = end.register_forward_hook(lambda m, args, out: out / 2)
            wanted = probe(x.clone())
            handle.remove()
            _end_in_step(probe, lambda x, f: f.new_full((1, 1, 1, 1), 0.5))
            return torch.allclose(probe(x), wanted, 1e-4, 1e-5)
    except Exception:  # of a block that takes, or is, something else
        return False


def state_width(block: Any) -> int:
    """Channels of what a block of a ResNet returns."""
    return getattr(block, 'conv3', block.conv2).out_channels
