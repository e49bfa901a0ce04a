"""What single blocks are for, on the digits' published networks.

    python -m projects.reproduction.single_blocks

Stiff features matter most, says Section 3.1 of
https://arxiv.org/abs/2308.09939. Here each recorded block is left out in
turn, x_{t+1} = x_t, and the accuracy's fall is held against the block's NSI.

The ground truth trajectory (Definition 3) is that of the best network there
could be, which nobody has. What can be computed is the trajectory that the
network's own blocks stand for: each recorded block's right side f ⊗ Δt,
integrated by 16 Euler steps of 1/16 in the place of one. How far the
network's states are from it, and what accuracy it has, is shown. That a block
is a right side that holds during its step is a reading.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
from mmengine.config import Config
from mmengine.registry import DATASETS, MODELS, init_default_scope
from scipy.stats import spearmanr
from torch import Tensor

from mmstepnet import measure_stiffness
from mmstepnet.attentions import choose_step
from mmstepnet.jobs.checkpoint import load_weights, read_checkpoint

ROOT = Path(__file__).resolve().parents[2]
NAMES = {name: f'resnet20_{name.lower()}_digits'
         for name in ('plain', 'SE', 'StepNet')}
FINER = 16
"""Steps in the place of one."""


def load_network(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    """A published network, the digits that it is tested on, and labels."""
    cfg = Config.fromfile(ROOT / 'configs' / 'digits' / f'{name}.py')
    init_default_scope(cfg.default_scope)
    cfg.model.data_preprocessor = dict(
        cfg.data_preprocessor, type='ClsDataPreprocessor')
    model = MODELS.build(cfg.model).eval()
    path = str(ROOT / 'weights' / f'{name}.safetensors')
    load_weights(model, read_checkpoint(path), path)
    samples = list(DATASETS.build(cfg.test_dataloader.dataset))
    data = model.data_preprocessor({
        key: [sample[key] for sample in samples]
        for key in ('inputs', 'data_samples')})
    labels = torch.cat([s.gt_label for s in data['data_samples']])
    return model, data['inputs'], labels


@contextmanager
def forwards(blocks: Sequence[nn.Module],
             change: Callable[[nn.Module], Callable[[Tensor], Tensor]]
             ) -> Iterator[None]:
    """Let blocks compute something else for a while."""
    for block in blocks:
        block.forward = change(block)
    try:
        yield
    finally:
        for block in blocks:
            del block.forward


def left_out(block: nn.Module) -> Callable[[Tensor], Tensor]:
    """x_{t+1} = x_t."""
    return lambda x: x


def finer(block: nn.Module) -> Callable[[Tensor], Tensor]:
    """Euler's method with :data:`FINER` steps, one activation at the end."""
    def forward(x: Tensor) -> Tensor:
        seen = []
        hook = block.step.register_forward_pre_hook(
            lambda module, inputs: seen.append(inputs))
        try:
            for _ in range(FINER):
                type(block).forward(block, x)
                _, branch, norm, *_ = seen.pop()
                f = norm(branch)
                attention = block.step.attention
                if attention is not None:
                    f = f * choose_step(attention, x, f)
                x = x + f / FINER
        finally:
            hook.remove()
        return block.step.activation(x)
    return forward


def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Top-1 accuracy (%)."""
    return 100 * (model(images).argmax(1) == labels).float().mean().item()


def states_after(model: nn.Module, images: Tensor,
                 blocks: Sequence[nn.Module]) -> list[Tensor]:
    """What the blocks return, (N, C, H, W) each."""
    states = []
    hooks = [block.register_forward_hook(
        lambda module, inputs, out: states.append(out)) for block in blocks]
    try:
        model(images)
    finally:
        for hook in hooks:
            hook.remove()
    return states


@torch.no_grad()
def examine(model: nn.Module, images: Tensor, labels: Tensor) -> dict:
    """Measure one network of ours.

    Returns:
        dict: ``blocks``, names (L,); ``nsi``, means over images (L,);
        ``accuracy`` (%); ``fall`` of it where a block is left out, (L,);
        ``deviation``, mean over images of ‖x - x̂‖ / ‖x̂‖ behind each block,
        x̂ of the finer network, (L,); and ``finer``, its accuracy (%).
    """
    found = measure_stiffness(model, [images])
    blocks = [model.get_submodule(name) for name in found.blocks]
    whole = accuracy(model, images, labels)
    fall = []
    for block in blocks:
        with forwards([block], left_out):
            fall.append(whole - accuracy(model, images, labels))
    coarse = states_after(model, images, blocks)
    with forwards(blocks, finer):
        fine = states_after(model, images, blocks)
        finer_accuracy = accuracy(model, images, labels)
    return dict(
        blocks=found.blocks, nsi=found.nsi().mean(0), accuracy=whole,
        fall=np.array(fall), finer=finer_accuracy,
        deviation=np.array([
            ((a - b).flatten(1).norm(dim=1) / b.flatten(1).norm(dim=1))
            .mean().item() for a, b in zip(coarse, fine)]))


def table(networks: dict[str, dict]) -> str:
    """Falls, NSI and deviations, Markdown."""
    lines = ['| network | | ' + ' | '.join(
        next(iter(networks.values()))['blocks']).replace('backbone.', '')
        + ' | together |', '|---|---|' + '---:|' * 6 + '---|']
    for name, found in networks.items():
        rho = spearmanr(found['nsi'], found['fall'])
        for what, values, end in (
                ('mean NSI', found['nsi'], ''),
                ('fall of accuracy without it, points', found['fall'],
                 f'Spearman with NSI {rho.statistic:.2f} '
                 f'(p = {rho.pvalue:.2f})'),
                ('distance from the finer trajectory', found['deviation'],
                 f'{found["finer"]:.2f} % right, the network '
                 f'{found["accuracy"]:.2f} %')):
            lines.append(f'| {name} | {what} | ' + ' | '.join(
                f'{v:.2f}' for v in values) + f' | {end} |')
    return '\n'.join(lines)


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print(table({label: examine(*load_network(name))
                 for label, name in NAMES.items()}))


if __name__ == '__main__':
    main()
