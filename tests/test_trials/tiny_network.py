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


def two_headed():
    """A distilled network: its scores are the mean of two heads."""

    class Distilled(TinyNet):
        def __init__(self):
            super().__init__()
            self.other = nn.Linear(8, 5)

        def forward(self, x):
            features = self.layer1(self.stem(x)).mean((2, 3))
            return (self.fc(features) + self.other(features)) / 2

    return Distilled(), ToTensor()


def half():
    model, transform = net()
    model.layer1.half()
    return model, transform


def without_numbers():
    model, transform = net()
    nn.init.constant_(model.layer1[0].bn1.weight, torch.nan)
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
