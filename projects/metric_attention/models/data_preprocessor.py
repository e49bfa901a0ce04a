"""Sentences of different lengths become one tensor."""

from collections.abc import Sequence

import numpy as np
import torch
from mmengine.model import BaseDataPreprocessor
from torch import Tensor

from mmstepnet.registry import MODELS


@MODELS.register_module()
class TranslationDataPreprocessor(BaseDataPreprocessor):
    """Pad the token ids of a batch and move them to the model's device.

    Args:
        pad_idx (int): Id of the padding. Defaults to 0.
        non_blocking (bool): Whether copies to the device may overlap.
            Defaults to False.
    """

    def __init__(self, pad_idx: int = 0, non_blocking: bool = False):
        super().__init__(non_blocking)
        self.pad_idx = pad_idx

    def forward(self, data: dict, training: bool = False) -> dict:
        """Collate a batch.

        Args:
            data (dict): ``source`` and, but for prediction, ``target``,
                lists of N arrays of ids.
            training (bool): No difference. Defaults to False.

        Returns:
            dict: ``source`` (N, S) and, if given, ``target`` (N, T), int64.
        """
        return {
            name: self.cast_data(self.pad(data[name]))
            for name in ('source', 'target') if name in data
        }

    def pad(self, sentences: Sequence[np.ndarray]) -> Tensor:
        """Bring sentences to the length of the longest, (N, T)."""
        longest = max(len(ids) for ids in sentences)
        batch = torch.full((len(sentences), longest), self.pad_idx)
        for row, ids in zip(batch, sentences):
            row[:len(ids)] = torch.as_tensor(ids)
        return batch
