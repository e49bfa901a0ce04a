"""Train torchvision's Faster R-CNN with steps, as its reference loop does."""

import argparse

import torch
from digits import Scenes, load_split
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
from torchvision.ops import box_iou

from mmstepnet import insert_steps, step_parameters


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument('--attention', default='StepNet')
    parser.add_argument('--pictures', type=int, default=400)
    parser.add_argument('--epochs', type=int, default=4)
    parser.add_argument('--seed', type=int, default=0)
    return parser.parse_args()


def collate(rows: list[tuple]) -> tuple[list[Tensor], list[dict]]:
    images, targets = zip(*rows)
    return list(images), list(targets)


def train_epoch(
    model: nn.Module,
    loader: DataLoader,
    optimizer: torch.optim.Optimizer,
    warm_up: bool,
) -> float:
    """One epoch, with a rising learning rate in the first; mean loss."""
    model.train()
    rising = (
        torch.optim.lr_scheduler.LinearLR(
            optimizer, 1e-2, total_iters=len(loader) - 1
        )
        if warm_up
        else None
    )
    total = 0.0
    for images, targets in loader:
        loss = sum(model(images, targets).values())
        if not loss.isfinite():
            raise RuntimeError(f'the loss is {loss.item()}; training stops')
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rising is not None:
            rising.step()
        total += loss.item()
    return total / len(loader)


@torch.inference_mode()
def evaluate(model: nn.Module, loader: DataLoader) -> tuple[float, float]:
    """Share of digits found, and of boxes that are right (%).

    A box of score 0.5 and more is right where it overlaps a digit of its class
    by an IoU of 0.5 and more.
    """
    model.eval()
    found = digits = right = boxes = 0
    for images, targets in loader:
        for output, target in zip(model(images), targets):
            sure = output['scores'] >= 0.5
            hit = box_iou(output['boxes'][sure], target['boxes']) >= 0.5
            hit &= output['labels'][sure][:, None] == target['labels']
            found += int(hit.any(0).sum())
            right += int(hit.any(1).sum())
            digits += len(target['labels'])
            boxes += int(sure.sum())
    return 100 * found / digits, 100 * right / max(boxes, 1)


def main() -> None:
    args = parse_args()
    torch.manual_seed(args.seed)
    train, test = load_split()
    loaders = [
        DataLoader(
            Scenes(digits, count, seed),
            4,
            shuffle=not seed,
            collate_fn=collate,
        )
        for seed, (digits, count) in enumerate(
            ((train, args.pictures), (test, max(args.pictures // 8, 8)))
        )
    ]

    # From scratch, hence with norms that learn; for a pretrained backbone
    # leave norms and init_step as they are by default.
    backbone = resnet_fpn_backbone(
        backbone_name='resnet18',
        weights=None,
        norm_layer=nn.BatchNorm2d,
        trainable_layers=5,
    )
    # A small picture has few digits; the head costs more than all else.
    model = FasterRCNN(
        backbone,
        num_classes=11,
        min_size=128,
        max_size=128,
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
        box_batch_size_per_image=64,
        rpn_post_nms_top_n_test=100,
    )
    blocks = insert_steps(model, args.attention, init_step=None)
    print(f'{args.attention} in {", ".join(blocks)}')

    optimizer = torch.optim.SGD(
        step_parameters(model, weight_decay=0.0),
        lr=0.02,
        momentum=0.9,
        weight_decay=1e-4,
    )
    schedule = torch.optim.lr_scheduler.MultiStepLR(
        optimizer, [max(args.epochs - 1, 1)], 0.1
    )
    for epoch in range(1, args.epochs + 1):
        loss = train_epoch(model, loaders[0], optimizer, epoch == 1)
        schedule.step()
        found, right = evaluate(model, loaders[1])
        print(
            f'epoch {epoch}: loss {loss:.3f}, {found:.1f} % of the digits '
            f'found, {right:.1f} % of the boxes right'
        )


if __name__ == '__main__':
    main()
