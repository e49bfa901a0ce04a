"""Train a network of timm with steps on scikit-learn's digits, in PyTorch."""

import argparse

import timm
import torch
import torch.nn.functional as F
from digits import load_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from mmstepnet import insert_steps, step_parameters


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument('--model', default='resnet18', help='a ResNet of timm')
    parser.add_argument('--attention', default='StepNet')
    parser.add_argument(
        '--pretrained',
        action='store_true',
        help="start from timm's weights, which it downloads",
    )
    parser.add_argument('--epochs', type=int, default=5)
    parser.add_argument('--seed', type=int, default=0)
    return parser.parse_args()


@torch.inference_mode()
def evaluate(model: nn.Module, test: TensorDataset) -> float:
    """Accuracy (%)."""
    model.eval()
    correct = sum(
        (model(images).argmax(1) == labels).sum().item()
        for images, labels in DataLoader(test, 120)
    )
    return 100 * correct / len(test)


def main() -> None:
    args = parse_args()
    torch.manual_seed(args.seed)
    train, test = load_split()
    # timm's ResNets start with f = 0, where no gate gets a gradient.
    model = timm.create_model(
        args.model,
        pretrained=args.pretrained,
        num_classes=10,
        zero_init_last=False,
    )
    # Trained weights keep what they know; from scratch the paper's gate.
    blocks = insert_steps(
        model, args.attention, init_step=1.0 if args.pretrained else None
    )
    print(f'{args.attention} in {", ".join(blocks)}')

    lr = 0.01 if args.pretrained else 0.05
    # Gates start at weights of zero and move slowly.
    optimizer = torch.optim.SGD(
        step_parameters(model, lr=10 * lr, weight_decay=0.0),
        lr=lr,
        momentum=0.9,
        weight_decay=1e-4,
    )
    loader = DataLoader(train, 64, shuffle=True, drop_last=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
        optimizer, args.epochs * len(loader)
    )
    for epoch in range(1, args.epochs + 1):
        model.train()
        for images, labels in loader:
            loss = F.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        print(f'epoch {epoch}: accuracy {evaluate(model, test):.2f} %')


if __name__ == '__main__':
    main()
