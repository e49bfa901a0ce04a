"""ResNet whose residual step is chosen by an attention."""

from collections.abc import Iterator, Sequence
from inspect import signature

import torch.nn as nn
from mmcv.cnn import build_norm_layer
from mmpretrain.models.backbones import ResNet
from torch import Tensor

from mmstepnet.attentions import build_attention
from mmstepnet.registry import MODELS

from .blocks import (
    PreActStepBasicBlock,
    PreActStepBottleneck,
    StepBasicBlock,
    StepBottleneck,
    StepResLayer,
    warn_of_frozen_starts,
)

STEPNET = dict(type='StepNet')


@MODELS.register_module()
class StepResNet(ResNet):
    """ResNet with an attention as its residual step.

    ``attention=None`` is the host's plain ResNet, bit by bit. Parameter names
    are torchvision's; an attention only adds ``*.step.attention.*``.

    Args:
        depth (int): 18, 34, 50, 101 or 152.
        attention (dict, optional): Config of an attention; None is the plain
            ResNet. Defaults to ``dict(type='StepNet')``.
        blocks (Sequence[str], optional): The blocks that carry the attention,
            as ``'layer1.2'`` (stage and index, as in the parameter names) or
            ``'layer3'`` (a whole stage). None is all. A gate that starts at
            ``init_step`` in a frozen stage never leaves it, of which a
            warning names the blocks. Defaults to None.
        first_block (bool, optional): Whether blocks that project their
            identity carry the attention, unless ``blocks`` names them one by
            one. None leaves it to the attention: False for StepNet (a reading
            of the paper), True for the others. Defaults to None.
        preact (bool): Pre-activation: norms stand before the convolutions,
            the stem has none, and one more follows the last stage
            (https://arxiv.org/abs/1603.05027). :func:`mmstepnet.fold` knows
            it, MMCV's ``fuse_conv_bn`` does not. Defaults to False.
        zero_init_residual (bool): The hosts' default, True, starts with
            f = 0, hence NSI 0 and no gradient for any gate. Defaults to
            False, as in the papers' training code.
        contract_dilation (bool): As in MMSegmentation's ResNet: the first
            block of a stage with ``dilations`` d > 1 takes d / 2. Defaults to
            False.
        **kwargs: See :class:`mmpretrain.models.ResNet`.

    Raises:
        ValueError: Depth, a stage or a name in ``blocks`` does not exist, a
            switch is neither True nor False, or ``zero_init_residual`` meets
            ``preact``.
        KeyError: The attention is not registered.
        TypeError: There is no such argument.

    Example:
        >>> import torch
        >>> from mmstepnet.models import StepResNet
        >>> model = StepResNet(18, out_indices=(2, 3)).eval()
        >>> [tuple(out.shape) for out in model(torch.rand(1, 3, 64, 64))]
        [(1, 256, 4, 4), (1, 512, 2, 2)]
    """

    arch_settings = {
        18: (StepBasicBlock, (2, 2, 2, 2)),
        34: (StepBasicBlock, (3, 4, 6, 3)),
        50: (StepBottleneck, (3, 4, 6, 3)),
        101: (StepBottleneck, (3, 4, 23, 3)),
        152: (StepBottleneck, (3, 8, 36, 3)),
    }
    preact_blocks = {
        StepBasicBlock: PreActStepBasicBlock,
        StepBottleneck: PreActStepBottleneck,
    }
    stem_map_size = 56
    """Side of the stem's map at the standard input of 224x224."""

    def __init__(self,
                 depth: int,
                 *,
                 attention: dict | None = STEPNET,
                 blocks: Sequence[str] | None = None,
                 first_block: bool | None = None,
                 preact: bool = False,
                 zero_init_residual: bool = False,
                 contract_dilation: bool = False,
                 **kwargs):
        if depth not in tuple(self.arch_settings):
            raise ValueError(f'{type(self).__name__} has no depth {depth!r}; '
                             f'expected one of {sorted(self.arch_settings)}')
        for switch, value in (('first_block', first_block),
                              ('preact', preact),
                              ('zero_init_residual', zero_init_residual),
                              ('contract_dilation', contract_dilation)):
            if value not in (True, False) and not (
                    switch == 'first_block' and value is None):
                raise ValueError(f'{type(self).__name__}: {switch} must be '
                                 f'True or False, got {value!r}')
        _check_stages(type(self).__name__, **kwargs)
        known = {name for cls in type(self).__mro__
                 for name in signature(cls.__init__).parameters}
        if unknown := kwargs.keys() - known:
            raise TypeError(
                f'{type(self).__name__} has no {", ".join(sorted(unknown))}; '
                + ("they are ResNeXt's: take type='mmstepnet.StepResNeXt'"
                   if 'groups' in unknown else
                   "of MMDetection's ResNet it knows neither DCN nor plugins: "
                   'take them out of the config, by _delete_=True if need be'))
        if preact and zero_init_residual:
            raise ValueError(
                'zero_init_residual needs a norm behind the last convolution, '
                'which preact=True has not; set one of them to False')
        self.preact = preact
        self.contract_dilation = contract_dilation
        if preact:
            block, stage_blocks = self.arch_settings[depth]
            self.arch_settings = {
                depth: (self.preact_blocks[block], stage_blocks)
            }
        super().__init__(
            depth, zero_init_residual=zero_init_residual, **kwargs)
        if preact:
            self._move_norm_to_the_end()
        if attention is not None:
            self._add_attention(attention, blocks, first_block)
        elif blocks is not None:
            raise ValueError(f'blocks={blocks!r} selects blocks for an '
                             'attention, but attention is None')
        self._freeze_stages()
        warn_of_frozen_starts(self)

    def make_res_layer(self, **kwargs) -> StepResLayer:
        """Build a stage."""
        stage = StepResLayer(**kwargs)
        if self.contract_dilation:
            for module in stage[0].modules():
                if isinstance(module, nn.Conv2d) and max(module.dilation) > 1:
                    module.dilation = module.padding = tuple(
                        d // 2 for d in module.dilation)
        return stage

    def residual_blocks(self) -> Iterator[tuple[str, nn.Module]]:
        """Yield name and module of every residual block."""
        for stage in self.res_layers:
            for index, block in enumerate(getattr(self, stage)):
                yield f'{stage}.{index}', block

    def conv_norm_pairs(self) -> list[tuple[str, str]]:
        """Name the stem's convolution and the norm behind it, to fold."""
        stem = not self.deep_stem and self.norm1_name is not None
        return [('conv1', self.norm1_name)] if stem else []

    def _add_attention(self, cfg: dict, names: Sequence[str] | None,
                       first_block: bool | None) -> None:
        found = dict(self.residual_blocks())
        if names is None:
            names = self.res_layers
        elif (isinstance(names, str) or not isinstance(names, Sequence)
              or not names):
            raise ValueError(
                f"blocks must be a non-empty list of names such as 'layer1.2' "
                f"or 'layer3', or None for all; got {names!r}")
        unknown = [n for n in names if n not in (*found, *self.res_layers)]
        if unknown:
            raise ValueError(
                f'blocks names {unknown}, which ResNet-{self.depth} has not; '
                f'it has ' + ', '.join(
                    f'{stage}.0 to {stage}.{len(getattr(self, stage)) - 1}'
                    for stage in self.res_layers))
        map_sizes = self._map_sizes()
        for name, block in found.items():
            stage = name.split('.')[0]
            if name not in names and stage not in names:
                continue
            attention = build_attention(cfg, block.out_channels,
                                        map_sizes[stage])
            projects = block.downsample is not None
            with_first = (
                attention.first_block if first_block is None else first_block)
            if name in names or with_first or not projects:
                block.step.attention = attention

    def _map_sizes(self) -> dict[str, int]:
        """Side of each stage's map at the standard input."""
        sizes, size = {}, self.stem_map_size
        for stage, stride in zip(self.res_layers, self.strides):
            size = -(-size // stride)
            sizes[stage] = size
        return sizes

    def _move_norm_to_the_end(self) -> None:
        if not self.deep_stem:
            delattr(self, self.norm1_name)
            self.norm1_name = None
        width = getattr(self, self.res_layers[-1])[-1].out_channels
        self.last_norm_name, norm = build_norm_layer(
            self.norm_cfg, width, postfix='_last')
        self.add_module(self.last_norm_name, norm)
        self.relu = nn.ReLU(inplace=True)

    def _stem_modules(self) -> tuple[nn.Module, ...]:
        if self.deep_stem:
            return (self.stem, )
        if self.preact:
            return (self.conv1, )
        return self.conv1, self.norm1

    def _freeze_stages(self) -> None:
        frozen = []
        if self.frozen_stages >= 0:
            frozen += self._stem_modules()
        frozen += [
            getattr(self, name)
            for name in self.res_layers[:max(self.frozen_stages, 0)]
        ]
        for module in frozen:
            module.eval()
            module.requires_grad_(False)

    def _forward_stem(self, x: Tensor) -> Tensor:
        for module in self._stem_modules():
            x = module(x)
        return x if self.deep_stem or self.preact else self.relu(x)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Compute the feature maps.

        Args:
            x (Tensor): Images, (N, in_channels, H, W).

        Returns:
            Tuple[Tensor, ...]: One map for each of ``out_indices``.
        """
        x = self.maxpool(self._forward_stem(x))
        outs = []
        for i, name in enumerate(self.res_layers):
            x = getattr(self, name)(x)
            if i in self.out_indices:
                outs.append(x)
        if self.preact and self.num_stages - 1 in self.out_indices:
            outs[-1] = self.relu(getattr(self, self.last_norm_name)(outs[-1]))
        return tuple(outs)

    def train(self, mode: bool = True) -> 'StepResNet':
        """Set the mode; frozen stages and, on request, norms stay in eval."""
        super().train(mode)
        return self


def _check_stages(owner: str,
                  num_stages: int = 4,
                  out_indices: Sequence[int] = (3, ),
                  frozen_stages: int = -1,
                  **kwargs) -> None:
    """Refuse stages that are not there; the hosts return or freeze others."""
    if num_stages not in (1, 2, 3, 4):
        raise ValueError(f'{owner}: num_stages must be 1 to 4, got '
                         f'{num_stages!r}')
    stages = range(num_stages)
    if (not isinstance(out_indices, Sequence) or not out_indices
            or any(index not in stages for index in out_indices)):
        raise ValueError(
            f'{owner}: out_indices must be a non-empty list of stages, 0 to '
            f'{num_stages - 1}, got {out_indices!r}')
    if frozen_stages not in range(-1, num_stages + 1):
        raise ValueError(
            f'{owner}: frozen_stages must be -1 (none), 0 (the stem) or up '
            f'to {num_stages}, the number of stages, got {frozen_stages!r}')
