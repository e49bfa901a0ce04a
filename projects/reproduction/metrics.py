"""What the paper calls its figures, and what the hosts call them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """A figure of a table.

    Attributes:
        key (str): The host's name of it.
        scale (float): Factor from the host's value to the table's.
        decimals (int): Decimals in the paper's tables.
        unit (str): Defaults to ``'%'``.
    """

    key: str
    scale: float
    decimals: int
    unit: str = '%'


METRICS = {
    'Accuracy': Metric('accuracy/top1', 1, 2),
    'AP': Metric('coco/bbox_mAP', 100, 1),
    'AP50': Metric('coco/bbox_mAP_50', 100, 1),
    'AP75': Metric('coco/bbox_mAP_75', 100, 1),
    'APs': Metric('coco/bbox_mAP_s', 100, 1),
    'APm': Metric('coco/bbox_mAP_m', 100, 1),
    'APl': Metric('coco/bbox_mAP_l', 100, 1),
    'BLEU': Metric('translation/BLEU', 1, 2, ''),
    'Perplexity': Metric('translation/perplexity', 1, 2, ''),
}
"""Metrics by the names that metafiles and tables use."""
