"""The hosts' ResNeXts whose residual step is chosen by an attention."""

from mmstepnet.registry import MODELS

from .resnet import StepResNet


@MODELS.register_module()
class StepResNeXt(StepResNet):
    """:class:`StepResNet` over a host's ResNeXt.

    Aggregated Residual Transformations for Deep Neural Networks, CVPR 2017,
    https://arxiv.org/abs/1611.05431.

    Args:
        depth (int): 50, 101 or 152.
        **kwargs: Those of :class:`StepResNet`, but for ``preact``, and of the
            host's class: ``groups``, which defaults to 32 in MMPretrain and
            to 1 in MMDetection, and the channels a group of the 3x3
            convolutions in the first stage, ``width_per_group`` in MMPretrain
            and ``base_width`` in MMDetection.
    """

    host_type = 'ResNeXt'
