"""The hosts' ResNets whose residual step is chosen by an attention."""

from collections.abc import Iterator, Sequence

import torch.nn as nn
from mmcv.cnn import build_norm_layer
from mmengine.model import BaseModule
from mmengine.registry import DefaultScope
from torch import Tensor

from mmstepnet.attentions import ATTENTIONS, IEBN
from mmstepnet.checks import check_config
from mmstepnet.generated import generated_class
from mmstepnet.registry import MODELS
from mmstepnet.steps.fused_blocks import put_fused_step

from .host import STEPNET, SteppedBackbone, find_host
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
            one. None leaves it to the attention: False for StepNet and our
            adaptors (a reading of the paper), True for the others. Defaults
            to None.
        preact (bool): Pre-activation: norms stand before the convolutions,
            the stem has none, and one more follows the last stage
            (https://arxiv.org/abs/1603.05027). :func:`mmstepnet.fold` knows
            it, MMCV's ``fuse_conv_bn`` does not. Defaults to False.
        zero_init_residual (bool): The hosts' default, True, starts with
            f = 0, hence NSI 0 and no gradient for any gate. Defaults to
            False, as in the papers' training code.
        host (str, optional): Scope of the host, such as ``'mmdet'``. None is
            the default scope. Defaults to None.
        **kwargs: Those of the host's class.

    Raises:
        ValueError: There is neither a ``host`` nor a host's default scope; a
            name in ``blocks`` does not exist; or ``preact`` meets
            ``zero_init_residual``, DCN or plugins.
        KeyError: The attention is not registered.

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

    def __init__(
        self,
        depth: int,
        *,
        attention: dict | None = STEPNET,
        blocks: Sequence[str] | str | None = None,
        first_block: bool | None = None,
        preact: bool = False,
        zero_init_residual: bool = False,
        host: str | None = None,
        **kwargs,
    ):
        if preact and (
            zero_init_residual
            or kwargs.get('dcn')
            or kwargs.get('plugins')
            or self.host_type != 'ResNet'
        ):
            raise ValueError(
                f'{type(self).__name__}: preact=True has no norm behind the '
                'last convolution, which zero_init_residual needs, and '
                'neither DCN, plugins nor a ResNeXt; leave out one or the '
                'other'
            )
        # Layers that only the host knows are looked for in its scope.
        scope = self.host.__module__.partition('.')[0]
        with DefaultScope.overwrite_default_scope(scope):
            super().__init__(
                depth=depth, zero_init_residual=zero_init_residual, **kwargs
            )
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
            self._insert(
                self._with_map_sizes(attention),
                blocks=blocks,
                first_block=first_block,
            )
        else:
            self.train(self.training)  # frozen stages freeze new norms, too

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

    def _keep_bn_in_projections(self) -> None:
        """Give projections a plain BN where IEBN is the norm.

        A reading, as is its converse: the parameter counts of Table 1 fit
        either.
        """
        for _, block in self.residual_blocks():
            if block.downsample is not None and isinstance(
                block.downsample[-1], IEBN
            ):
                cfg = {**self.norm_cfg, 'type': 'BN'}
                cfg.pop('init_step', None)
                _, block.downsample[-1] = build_norm_layer(
                    cfg, block.downsample[-1].num_features
                )

    def _move_norm_to_the_end(self) -> None:
        if not self.deep_stem:
            setattr(self, self.norm1_name, nn.Identity())
            self.relu = nn.Identity()
        width = getattr(self, self.res_layers[-1])[-1].convs[-1].out_channels
        self.last_norm_name, norm = build_norm_layer(
            self.norm_cfg, width, postfix='_last'
        )
        self.add_module(self.last_norm_name, norm)


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
