"""Scikit-learn's digits, as the examples use them."""

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset


def load_split(size: int = 32) -> tuple[TensorDataset, TensorDataset]:
    """1,437 images to train with and 360 to test with, (3, size, size)."""
    digits = load_digits()
    images = torch.from_numpy(digits.images / 16).float()[:, None]
    images = F.interpolate(images, size=size, mode='bilinear')
    labels = torch.from_numpy(digits.target)
    train, test = train_test_split(
        np.arange(len(labels)),
        test_size=360,
        random_state=0,
        stratify=digits.target,
    )
    images = (images.expand(-1, 3, -1, -1) - 0.5) / 0.5
    return (
        TensorDataset(images[train], labels[train]),
        TensorDataset(images[test], labels[test]),
    )


class Scenes(Dataset):
    """Pictures of 128 pixels with one to four digits, each in a box.

    Args:
        digits (TensorDataset): Where digits are taken from.
        count (int): Number of pictures.
        seed (int): Of what stands where. Defaults to 0.
    """

    def __init__(self, digits: TensorDataset, count: int, seed: int = 0):
        self.digits = digits
        self.count = count
        self.seed = seed

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, dict[str, Tensor]]:
        if not 0 <= index < self.count:
            raise IndexError(index)
        random = np.random.default_rng((self.seed, index))
        picture = torch.zeros(3, 128, 128)
        quarters = random.permutation(4)[: random.integers(1, 5)]
        boxes, labels = [], []
        for quarter in quarters.tolist():
            digit, label = self.digits[random.integers(len(self.digits))]
            side = int(random.integers(28, 57))
            x, y = (int(v) for v in random.integers(0, 64 - side, 2))
            x, y = x + 64 * (quarter % 2), y + 64 * (quarter // 2)
            picture[:, y : y + side, x : x + side] = F.interpolate(
                digit[None] * 0.5 + 0.5, size=side, mode='bilinear'
            )[0]
            boxes.append([x, y, x + side, y + side])
            labels.append(int(label) + 1)  # 0 is the background
        return picture, dict(
            boxes=torch.tensor(boxes, dtype=torch.float32),
            labels=torch.tensor(labels),
        )
