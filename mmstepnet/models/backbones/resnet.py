"""The hosts' ResNets whose residual step is chosen by an attention."""

from collections.abc import Iterator, Sequence

import torch.nn as nn
from mmcv.cnn import ConvModule, build_norm_layer
from mmengine.model import BaseModule
from mmengine.registry import DefaultScope
from torch import Tensor

from mmstepnet.attentions import ATTENTIONS, IEBN
from mmstepnet.checks import check_config
from mmstepnet.registry import MODELS
from mmstepnet.steps.fused_blocks import put_fused_step
from mmstepnet.steps.generated import generated_class

from .host import STEPNET, SteppedBackbone, find_host, parameters
from .preact import make_preact


@MODELS.register_module()
class StepResNet(SteppedBackbone):
    """A host's ResNet with an attention as its residual step.

    It is the ResNet of the host in whose scope it is built, or of the one
    that is named: MMPretrain's, MMDetection's with its DCN and plugins,
    MMSegmentation's. It takes what that class takes, has its defaults but
    for ``zero_init_residual``, and is an instance of it. Parameter names are
    the host's, hence torchvision's; an attention only adds
    ``*.step.attention.*``, and ``attention=None`` computes what the host
    does, bit by bit.

    Args:
        depth (int): 18, 34, 50, 101 or 152.
        attention (dict, optional): Config of an attention; None is the plain
            ResNet. Defaults to ``dict(type='StepNet')``.
        blocks (Sequence[str] | str, optional): The blocks that carry the
            attention, as ``'layer1.2'`` (stage and index, as in the parameter
            names) or ``'layer3'`` (a whole stage), see
            :func:`mmstepnet.insert_steps`. None is all. A gate that starts at
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
        host (str, optional): Scope of the host, such as ``'mmdet'``. None is
            the default scope. Defaults to None.
        **kwargs: Those of the host's class.

    Raises:
        ValueError: There is neither a ``host`` nor a host's default scope;
            depth, a stage or a name in ``blocks`` does not exist; a switch
            is neither True nor False; or ``preact`` meets
            ``zero_init_residual``, DCN or plugins.
        KeyError: The attention is not registered.
        TypeError: The host has no such argument.

    Example:
        >>> import torch
        >>> from mmstepnet.models import StepResNet
        >>> model = StepResNet(
        ...     18, out_indices=(2, 3), host='mmpretrain').eval()
        >>> [tuple(out.shape) for out in model(torch.rand(1, 3, 64, 64))]
        [(1, 256, 4, 4), (1, 512, 2, 2)]
    """

    host_type = 'ResNet'
    """Name that the hosts have registered their class by."""

    stem_map_size = 56
    """Side of the stem's map at the standard input of 224x224."""

    def __new__(cls, *args, host: str | None = None, **kwargs):
        """Make an instance of the host's class, too."""
        if not issubclass(cls, BaseModule):
            cls = generated_class(cls, cls._find_host(host))
        return super().__new__(cls)

    def __init__(self,
                 depth: int,
                 *,
                 attention: dict | None = STEPNET,
                 blocks: Sequence[str] | str | None = None,
                 first_block: bool | None = None,
                 preact: bool = False,
                 zero_init_residual: bool = False,
                 contract_dilation: bool = False,
                 host: str | None = None,
                 **kwargs):
        self._check(
            depth, dict(kwargs), first_block=first_block, preact=preact,
            zero_init_residual=zero_init_residual,
            contract_dilation=contract_dilation)
        if attention is None and blocks is not None:
            raise ValueError(f'blocks={blocks!r} selects blocks for an '
                             'attention, but attention is None')
        theirs = self.host
        if contract_dilation and 'contract_dilation' in parameters(theirs):
            kwargs['contract_dilation'] = True
        # Layers that only the host knows are looked for in its scope.
        scope = theirs.__module__.partition('.')[0]
        with DefaultScope.overwrite_default_scope(scope):
            super().__init__(
                depth=depth, zero_init_residual=zero_init_residual, **kwargs)
        if contract_dilation and 'contract_dilation' not in kwargs:
            self._contract_dilation()
        self.preact = preact
        self._keep_bn_in_projections()
        for _, block in self.residual_blocks():
            if preact:
                make_preact(block, self.norm_cfg)
            else:
                put_fused_step(block)
        if preact:
            self._move_norm_to_the_end()
        if attention is not None:
            self._insert(self._with_map_sizes(attention), blocks=blocks,
                         first_block=first_block)

    @classmethod
    def _find_host(cls, host: str | None) -> type:
        return find_host(cls.host_type, host)

    def residual_blocks(self) -> Iterator[tuple[str, nn.Module]]:
        """Yield name and module of every residual block."""
        for stage in self.res_layers:
            for index, block in enumerate(getattr(self, stage)):
                yield f'{stage}.{index}', block

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Compute the feature maps.

        Args:
            x (Tensor): Images, (N, in_channels, H, W).

        Returns:
            Tuple[Tensor, ...]: One map for each of ``out_indices``.
        """
        outs = super().forward(x)
        if self.preact and self.num_stages - 1 in self.out_indices:
            last = getattr(self, self.last_norm_name)(outs[-1]).relu()
            outs = (*outs[:-1], last)
        return outs

    def _check(self, depth: int, kwargs: dict, **switches) -> None:
        """Refuse what the hosts take for something else, or say too late."""
        owner, theirs = type(self).__name__, self.host
        known = parameters(theirs)
        if depth not in tuple(self.arch_settings):
            raise ValueError(f'{owner} has no depth {depth!r}; expected one '
                             f'of {sorted(self.arch_settings)}')
        for switch, value in switches.items():
            if value not in (True, False) and not (
                    switch == 'first_block' and value is None):
                raise ValueError(f'{owner}: {switch} must be True or False, '
                                 f'got {value!r}')
        if unknown := sorted(kwargs.keys() - known):
            raise TypeError(
                f'{owner} over {theirs.__module__}.{theirs.__name__} has no '
                f'{", ".join(unknown)}; it takes {", ".join(sorted(known))}. '
                f"DCN and plugins are of MMDetection's ResNets "
                f"(host='mmdet'), groups of mmstepnet.StepResNeXt")
        stages = {**known, **kwargs}
        longest = len(self.arch_settings[depth][1])
        count, outs, frozen = (stages[name] for name in (
            'num_stages', 'out_indices', 'frozen_stages'))
        if count not in range(1, longest + 1):
            raise ValueError(f'{owner}: num_stages must be 1 to {longest}, '
                             f'got {count!r}')
        if (not isinstance(outs, Sequence) or not outs
                or any(index not in range(count) for index in outs)):
            raise ValueError(
                f'{owner}: out_indices must be a non-empty list of stages, 0 '
                f'to {count - 1}, got {outs!r}')
        if frozen not in range(-1, count + 1):
            raise ValueError(
                f'{owner}: frozen_stages must be -1 (none), 0 (the stem) or '
                f'up to {count}, the number of stages, got {frozen!r}')
        if switches['preact'] and (
                switches['zero_init_residual'] or stages.get('dcn')
                or stages.get('plugins')):
            raise ValueError(
                f'{owner}: preact=True has no norm behind the last '
                'convolution, which zero_init_residual needs, and neither DCN '
                'nor plugins; leave out one or the other')

    def _with_map_sizes(self, attention: dict) -> dict:
        """The attention's config, with what StepResNet knows beside it."""
        check_config('attention', attention, "dict(type='StepNet')")
        attention = dict(init_step=None) | attention
        if ATTENTIONS.find(attention['type']).needs_map_size:
            sizes, size = {}, self.stem_map_size
            for stage, stride in zip(self.res_layers, self.strides):
                sizes[stage] = size = -(-size // stride)
            attention.setdefault('map_size', sizes)
        return attention

    def _contract_dilation(self) -> None:
        for stage in self.res_layers:
            for module in getattr(self, stage)[0].modules():
                dilation = getattr(module, 'dilation', 1)
                if isinstance(dilation, tuple) and max(dilation) > 1:
                    module.dilation = module.padding = tuple(
                        d // 2 for d in dilation)

    def _keep_bn_in_projections(self) -> None:
        """Give projections a plain BN where IEBN is the norm.

        A reading, as is its converse: the parameter counts of Table 1 fit
        either.
        """
        for _, block in self.residual_blocks():
            if block.downsample is not None and isinstance(
                    block.downsample[-1], IEBN):
                cfg = {**self.norm_cfg, 'type': 'BN'}
                cfg.pop('init_step', None)
                _, block.downsample[-1] = build_norm_layer(
                    cfg, block.downsample[-1].num_features)

    def _move_norm_to_the_end(self) -> None:
        if not self.deep_stem:
            setattr(self, self.norm1_name, nn.Identity())
            self.relu = nn.Identity()
        width = getattr(self, self.res_layers[-1])[-1].convs[-1].out_channels
        self.last_norm_name, norm = build_norm_layer(
            self.norm_cfg, width, postfix='_last')
        self.add_module(self.last_norm_name, norm)

    def _load_from_state_dict(self, state_dict: dict, prefix: str,
                              *args) -> None:
        """Load MMPretrain's deep stems and projections under other hosts.

        Until version 0.2 the backbones were MMPretrain's under every host.
        """
        names = {}
        if self.deep_stem and not isinstance(self.stem[0], ConvModule):
            for k in range(3):
                names[f'stem.{k}.conv.'] = f'stem.{3 * k}.'
                names[f'stem.{k}.bn.'] = f'stem.{3 * k + 1}.'
        block = f'{self.res_layers[0]}.0.downsample.'
        projection = self.layer1[0].downsample  # None of basic blocks
        if (f'{prefix}{block}0.weight' in state_dict and projection is not None
                and isinstance(projection[0], nn.AvgPool2d)):
            # Theirs has no pooling by 1; the norm moves first.
            names |= {f'{block}1.': f'{block}2.', f'{block}0.': f'{block}1.'}
        for old, new in names.items():
            for key in [k for k in state_dict if k.startswith(prefix + old)]:
                moved = prefix + new + key.removeprefix(prefix + old)
                state_dict[moved] = state_dict.pop(key)
        super()._load_from_state_dict(state_dict, prefix, *args)


@MODELS.register_module()
class StepResNetV1c(StepResNet):
    """:class:`StepResNet` with a stem of three 3x3 convolutions.

    Bag of Tricks for Image Classification with Convolutional Neural Networks,
    CVPR 2019, https://arxiv.org/abs/1812.01187.
    """

    def __init__(self, depth: int, **kwargs):
        super().__init__(depth, deep_stem=True, avg_down=False, **kwargs)


@MODELS.register_module()
class StepResNetV1d(StepResNet):
    """:class:`StepResNetV1c` whose projections pool before they project."""

    def __init__(self, depth: int, **kwargs):
        super().__init__(depth, deep_stem=True, avg_down=True, **kwargs)
