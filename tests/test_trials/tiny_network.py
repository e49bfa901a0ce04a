"""A residual network of a few hundred numbers, and pictures for it."""

import torch
import torch.nn as nn
from torch import Tensor
from torchvision.models.resnet import BasicBlock
from torchvision.transforms import ToTensor


class TinyNet(nn.Module):
    """Two blocks of a ResNet between a stem and a head."""

    def __init__(self, classes: int = 5):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.layer1 = nn.Sequential(BasicBlock(8, 8), BasicBlock(8, 8))
        self.fc = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.layer1(self.stem(x)).mean((2, 3)))


def net():
    torch.manual_seed(0)
    return TinyNet(), ToTensor()


def plain_net():
    return TinyNet()


def headless():
    model, transform = net()
    model.fc = nn.Identity()
    return model, transform


def blockless():
    layers = nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(4, 3)), ToTensor()


def pictures(count=30, classes=3, seed=0):
    """Pictures whose colours say something of their classes."""
    generator = torch.Generator().manual_seed(seed)
    data = []
    for k in range(count):
        image = torch.rand(3, 16, 16, generator=generator)
        image[k % classes] += 0.2
        data.append((image, k % classes))
    return data
