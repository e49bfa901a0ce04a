"""Vision Transformer whose similarity is chosen by config."""

from mmpretrain.models.backbones import VisionTransformer
from mmpretrain.models.utils import MultiheadAttention
from torch import Tensor

from mmstepnet import propagation as blocks
from mmstepnet.registry import MODELS

from .host_attention import HostAttention

METRIC_ATTENTION = dict(type='MetricAttention')


class PropagationSelfAttention(HostAttention):
    """An attention block in the place of the host's self-attention.

    Args:
        host (MultiheadAttention): The module to take the place of. Its
            output projection, dropouts and layer scale are taken over.
        propagation (dict): Config of the attention block.

    Raises:
        AttributeError: The type of attention is unknown.
        ValueError: The host drops attention weights, which never are in
            memory here.
    """

    def __init__(self, host: MultiheadAttention, propagation: dict):
        super().__init__(host)
        settings = dict(propagation)
        name = settings.pop('type').removeprefix('mmstepnet.')
        self.propagation = getattr(blocks, name)(
            host.embed_dims,
            host.num_heads,
            bias=host.qkv.bias is not None,
            **settings,
        )
        # It has a bias whatever qkv_bias says, and is there for one head too.
        self.propagation.proj = host.proj
        self.out_drop = host.out_drop

    def forward(self, x: Tensor) -> Tensor:
        """Inform tokens by each other, (N, L, C) -> (N, L, C)."""
        x = self.proj_drop(self.propagation(x))
        return self.out_drop(self.gamma1(x))


@MODELS.register_module()
class PropagationVisionTransformer(VisionTransformer):
    r"""ViT whose layers inform tokens by any similarity.

    The host's, but for its self-attention: layer norm, residual connection,
    dropouts, layer scale and feed-forward network are its own, so that
    ``propagation=dict(type='DotProductAttention', eps=math.sqrt(C / H))``
    computes what the host does, with H heads. The default time scale is the
    paper's, ``eps=1``: there is no :math:`1/\sqrt{C/H}` in it. Towards
    understanding how attention mechanism works in deep learning,
    https://arxiv.org/abs/2412.18288, whose authors exchange the attention of
    a Transformer for translation; for images it is ours.

    A bias of queries and keys has no effect on distances: of ``qkv_bias``
    only that of the values is left in metric-attention.

    Checkpoints of the host load. Where there are no queries and keys, theirs
    are left out, and the metric is to be learnt.

    Args:
        arch (str | dict): See :class:`mmpretrain.models.VisionTransformer`.
            Defaults to 'base'.
        propagation (dict): Config of the modules: ``type``, which is
            ``'MetricAttention'``, ``'L2Attention'`` or
            ``'DotProductAttention'``, and its arguments beside
            ``embed_dims``, ``num_heads`` and ``bias``. Defaults to
            ``dict(type='MetricAttention')``.
        **kwargs: See :class:`mmpretrain.models.VisionTransformer`.

    Raises:
        AttributeError: The type of the propagation is unknown.
        ValueError: ``layer_cfgs`` asks for dropout of attention weights.

    Example:
        >>> import torch
        >>> from mmstepnet.models import PropagationVisionTransformer
        >>> model = PropagationVisionTransformer(
        ...     'deit-tiny', img_size=32, patch_size=4).eval()
        >>> [tuple(out.shape) for out in model(torch.rand(1, 3, 32, 32))]
        [(1, 192)]
    """

    def __init__(
        self,
        arch: str | dict = 'base',
        *,
        propagation: dict = METRIC_ATTENTION,
        **kwargs,
    ):
        super().__init__(arch, **kwargs)
        for layer in self.layers:
            layer.attn = PropagationSelfAttention(layer.attn, propagation)
        if self.frozen_stages > 0:
            self._freeze_stages()

    def train(self, mode: bool = True) -> 'PropagationVisionTransformer':
        """Set the mode; the host's method returns None."""
        super().train(mode)
        return self
