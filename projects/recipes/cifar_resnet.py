"""The ResNets for CIFAR-10 whose weights others have trained.

Deep Residual Learning for Image Recognition, https://arxiv.org/abs/1512.03385,
Section 4.2: 6n + 2 layers, and shortcuts of option A, without parameters.
"""

import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from mmstepnet import register_block
from mmstepnet.blocks import StepDescription


class Block(nn.Module):
    """Two convolutions; names are those of the weights."""

    def __init__(self, width: int, out: int):
        super().__init__()
        stride = 1 if width == out else 2
        self.conv1 = nn.Conv2d(width, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.shortcut = nn.Identity() if width == out else Padded()
        self.relu = nn.ReLU()

    def branch(self, x: Tensor) -> Tensor:
        """Output of the second convolution."""
        return self.conv2(self.relu(self.bn1(self.conv1(x))))

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.shortcut(x) + self.bn2(self.branch(x)))


class Padded(nn.Module):
    """Every second place, and channels of zeros on both sides."""

    def forward(self, x: Tensor) -> Tensor:
        more = x.shape[1] // 2
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, more, more))


register_block(Block, StepDescription(
    branch=Block.branch, norm='bn2', width='bn2', identity='shortcut',
    activation='relu'))


class CIFARResNet(nn.Module):
    """ResNet-20, 32 or 44.

    Args:
        depth (int): 6n + 2.
        width (int): Channels of the first stage. Defaults to 16.
    """

    def __init__(self, depth: int, width: int = 16):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        widths = width, width, 2 * width, 4 * width
        for k in (1, 2, 3):
            setattr(self, f'layer{k}', nn.Sequential(*(
                Block(widths[k] if j else widths[k - 1], widths[k])
                for j in range((depth - 2) // 6))))
        self.linear = nn.Linear(4 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of images (N, 3, 32, 32) for ten classes."""
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(x.mean((2, 3)))
