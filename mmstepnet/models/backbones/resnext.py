"""The hosts' ResNeXts whose residual step is chosen by an attention."""

from mmstepnet.registry import MODELS

from .host import parameters
from .resnet import StepResNet


@MODELS.register_module()
class StepResNeXt(StepResNet):
    """:class:`StepResNet` over a host's ResNeXt.

    Aggregated Residual Transformations for Deep Neural Networks, CVPR 2017,
    https://arxiv.org/abs/1611.05431.

    Args:
        depth (int): 50, 101 or 152.
        base_width (int, optional): Channels a group of the 3x3 convolutions,
            in the first stage, by MMDetection's name.
        width_per_group (int, optional): The same by MMPretrain's name. Either
            may be given under each host. Defaults to the host's 4.
        **kwargs: Those of :class:`StepResNet`, but for ``preact``, and of the
            host's class: ``groups``, which defaults to 32 in MMPretrain and
            to 1 in MMDetection.

    Raises:
        ValueError: ``preact`` is set, or as :class:`StepResNet` does.
    """

    host_type = 'ResNeXt'

    def __init__(self, depth: int, **kwargs):
        if kwargs.get('preact'):
            raise ValueError('StepResNeXt has no pre-activation form; leave '
                             'preact out, or use StepResNet')
        names = ['base_width', 'width_per_group']
        if names[0] in parameters(self.host):
            names.reverse()
        if names[0] in kwargs:
            kwargs[names[1]] = kwargs.pop(names[0])
        super().__init__(depth, **kwargs)
