"""Classification of points by the information propagation network."""

import torch.nn.functional as F
from mmengine.model import BaseModel
from torch import Tensor

from mmstepnet.registry import MODELS

from .ipn import InformationPropagationNetwork


@MODELS.register_module()
class PointClassifier(BaseModel):
    """Information propagation network whose nodes are a batch's points.

    Every point of a batch informs every other one, in testing too: what is
    predicted for a point depends on the points beside it. A test batch must
    therefore be composed as the training batches are, of many points in no
    order of classes, and always be the same. Section 4.2 of
    https://arxiv.org/abs/2412.18288.

    Args:
        network (dict): Arguments of :class:`InformationPropagationNetwork`;
            ``out_channels`` is the number of classes.
        data_preprocessor (dict, optional): See
            :class:`mmengine.model.BaseModel`.
    """

    def __init__(self, network: dict, data_preprocessor: dict | None = None):
        super().__init__(data_preprocessor=data_preprocessor)
        self.network = InformationPropagationNetwork(**network)

    def forward(self,
                inputs: Tensor,
                labels: Tensor | None = None,
                mode: str = 'tensor') -> Tensor | dict | list[dict]:
        """Classify the N points of a batch.

        Args:
            inputs (Tensor): Features (N, in_channels).
            labels (Tensor, optional): Classes (N,), int64. ``'loss'`` needs
                them.
            mode (str): ``'tensor'``, ``'loss'`` or ``'predict'``.

        Returns:
            Tensor | dict | list[dict]: Logits (N, classes); the cross
            entropy, ``loss``; or for every point ``pred_score`` (classes,)
            and, if there are labels, ``gt_label`` (1,), as MMPretrain's
            ``Accuracy`` reads them.

        Raises:
            ValueError: The batch is empty or its features do not fit, or
                ``mode`` is none of the three.
        """
        logits = self.network(inputs)
        if mode == 'tensor':
            return logits
        if mode == 'loss':
            return dict(loss=F.cross_entropy(logits, labels))
        if mode == 'predict':
            scores = logits.softmax(-1)
            if labels is None:
                return [dict(pred_score=score) for score in scores]
            return [
                dict(pred_score=score, gt_label=label)
                for score, label in zip(scores, labels[:, None])
            ]
        raise ValueError("mode must be 'tensor', 'loss' or 'predict', got "
                         f'{mode!r}')
