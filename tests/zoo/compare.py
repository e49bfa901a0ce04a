"""What changes when the type of a zoo's backbone is exchanged for ours.

    python -m tests.zoo.compare mmdet mmpretrain --out docs/zoo.md

Per setting: outputs in eval mode; gradients, outputs and buffers after one
step along the gradient of all parameters; which modules train and which
parameters have a gradient; and every attribute that an argument of the
constructor sets. All must be equal to the bit. And outputs with StepNet at
``init_step=1``, which may round differently.
"""

import argparse
import contextlib
import copy
import json
import warnings
from collections import Counter
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from unittest import mock

import torch
import torch.nn as nn
from mmengine.registry import MODELS, DefaultScope
from torch import Tensor

from mmstepnet import insert_steps
from mmstepnet.models.backbones.host import parameters
from mmstepnet.steps import ResidualStep, fused

from .backbones import config_files, exchanged, found_in

OURS_ALONE = {'zero_init_residual'}
"""Defaults that are ours: StepResNet has False, where the hosts have True."""

WARM = 1e-5
"""Largest relative difference of outputs with StepNet at ``init_step=1``."""


def compare(setting: dict) -> str:
    """Compare a host's backbone and ours; empty where they are equal.

    Args:
        setting (dict): Config of the host's backbone, with ``_scope_``.
    """
    setting = copy.deepcopy(setting)
    scope = setting.pop('_scope_')
    with DefaultScope.overwrite_default_scope(scope):
        torch.manual_seed(0)
        with without_drawing():
            theirs = MODELS.build(copy.deepcopy(setting))
        draw(theirs)
        try:
            with without_drawing():
                ours = MODELS.build(exchanged(setting))
        except (ValueError, RuntimeError, TypeError, KeyError) as error:
            return f'{type(error).__name__}: {error}'
    return '; '.join(differences(ours, theirs))


def differences(ours: nn.Module, theirs: nn.Module) -> Iterator[str]:
    """Say what differs between two backbones, if anything."""
    try:
        ours.load_state_dict(theirs.state_dict())
    except RuntimeError as error:
        yield f'other keys: {error}'
        return
    for name in parameters(type(theirs)).keys() - OURS_ALONE:
        values = [getattr(model, name, None) for model in (ours, theirs)]
        if values[0] != values[1]:
            yield f'{name} is {values[0]!r}, not {values[1]!r}'
    # Deformable and atrous convolutions refuse maps below 3x3.
    large = any(getattr(theirs, name, None) for name in ('dcn', 'conv_cfg'))
    side = 96 if large else 64
    images = torch.randn(2, 3, side, side)
    for model in (ours, theirs):
        model.eval()  # which returns None in the hosts
    with torch.no_grad():
        try:
            expected = theirs(images)
        except (AttributeError, RuntimeError, ValueError) as error:
            yield f"the host's own does not run on images alone: {error}"
            return
        if not all(out.isfinite().all() for out in expected):
            yield "the host's own outputs are not finite with these weights"
            return
        if not same(ours(images), expected):
            yield 'other outputs in eval mode'
    insert_warm_steps(ours)
    with torch.no_grad(), fused(False):
        worst = max(float((a - b).norm() / b.norm())
                    for a, b in zip(ours.eval()(images), expected))
    if not worst <= WARM:
        yield f'outputs with StepNet at 1 differ by {worst:.1e}'
    take_attentions(ours)
    after = [one_step(model, images) for model in (ours, theirs)]
    for name, a, b in zip(('outputs', 'buffers', 'gradients'), *after):
        if not same(a, b):
            yield f'other {name} after a step'
    modes = [{name: (m.training, [p.requires_grad for p in m.parameters()])
              for name, m in model.named_modules()}
             for model in (ours, theirs)]
    if any(modes[0][name] != mode for name, mode in modes[1].items()):
        yield 'other modules train'


def take_attentions(model: nn.Module) -> None:
    """Leave steps that change nothing."""
    for step in model.modules():
        if isinstance(step, ResidualStep):
            step.attention = None


def insert_warm_steps(model: nn.Module) -> None:
    """StepNet in all blocks."""
    take_attentions(model)
    insert_steps(model, 'StepNet', first_block=True)


def one_step(model: nn.Module, images: Tensor) -> tuple:
    """Outputs and buffers after one step of SGD, and its gradients."""
    model.train()
    torch.manual_seed(0)  # of stochastic depth and dropout
    loss = sum((out * torch.randn(out.shape)).mean() for out in model(images))
    if loss.requires_grad:  # not where all stages are frozen
        loss.backward()
    moved = [p for p in model.parameters() if p.grad is not None]
    with torch.no_grad():
        for p in moved:  # of a length that no network blows up with
            p -= 1e-3 * p.grad / p.grad.abs().max().clamp(min=1e-12)
        outs = model(images)
    return outs, list(model.buffers()), [p.grad for p in moved]


def same(got: list[Tensor], expected: list[Tensor]) -> bool:
    """Whether tensors are equal to the bit, and finite."""
    return len(got) == len(expected) and all(
        torch.equal(a, b) and bool(a.isfinite().all())
        for a, b in zip(got, expected))


def draw(model: nn.Module) -> None:
    """Fill all weights and statistics, large ones with repeated noise."""
    noise = torch.randn(1 << 20, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if not value.is_floating_point():
                continue
            some = noise.repeat(value.numel() // len(noise) + 1)
            some = some[:value.numel()].view(value.shape)
            if value[0].numel() > 1:
                value.copy_(some).mul_((2 / value[0].numel())**0.5)
            elif name.endswith(('weight', 'var')):
                value.copy_(some).mul_(0.2).abs_().add_(0.6)
            elif name.endswith('gamma'):  # of standardised weights
                value.copy_(some).abs_().mul_(0.02)
            else:
                value.copy_(some).mul_(0.2)


@contextlib.contextmanager
def without_drawing() -> Iterator[None]:
    """Leave out random numbers for weights that are overwritten."""
    with contextlib.ExitStack() as stack:
        for name in ('kaiming_uniform_', 'uniform_', 'normal_'):
            stack.enter_context(mock.patch.object(
                nn.init, name, lambda tensor, *args, **kwargs: tensor))
        yield


def zoo(host: str, rows: Path | None = None
        ) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Settings by config, and what was found, by setting.

    Args:
        host (str): Name of the host's module.
        rows (Path, optional): File that gets one row a setting as it comes; a
            second call goes on where the first ended.
    """
    configs, verdicts = {}, {}
    if rows is not None and rows.exists():
        verdicts.update(map(json.loads, rows.read_text('utf-8').splitlines()))
    for path in config_files(host):
        name = path.as_posix().partition('configs/')[2]
        try:
            configs[name] = found_in(path)
        except (OSError, KeyError, RuntimeError) as error:
            print(f'{host} {name} cannot be read: {error}', flush=True)
    settings = sorted({s for found in configs.values() for s in found})
    for setting in settings:
        if setting in verdicts:
            continue
        verdicts[setting] = compare(json.loads(setting))
        print(verdicts[setting] or 'equal', setting, flush=True)
        if rows is not None:
            with rows.open('a', encoding='utf-8') as file:
                print(json.dumps([setting, verdicts[setting]]), file=file)
    return ({name: found for name, found in configs.items() if found},
            {setting: verdicts[setting] for setting in settings})


def table(host: str, configs: dict, verdicts: dict) -> list[str]:
    """Markdown: how many configs of each type are equal, and which not."""
    total, equal, rest = Counter(), Counter(), {}
    for name, found in configs.items():
        for kind in {json.loads(setting)['type'] for setting in found}:
            total[kind] += 1
            wrong = [verdicts[s] for s in found
                     if json.loads(s)['type'] == kind and verdicts[s]]
            equal[kind] += not wrong
            if wrong:
                rest.setdefault((kind, wrong[0].partition('(')[0]),
                                []).append(name)
    good = sum(not any(verdicts[s] for s in found)
               for found in configs.values())
    lines = [
        f'## {host} {metadata.version(distribution(host))}', '',
        f'**{good} of {len(configs)}** configs with a residual backbone '
        f'({100 * good / len(configs):.1f} %), {len(verdicts)} settings.', '',
        '| type | exchanged for | configs | equal |', '|---|---|---|---|'
    ]
    for kind, count in total.most_common():
        ours = exchanged(dict(type=kind))['type'].partition('.')[2]
        lines.append(f'| `{kind}` | `{ours}` | {count} | {equal[kind]} |')
    lines += ['', 'Not equal:', ''] if rest else ['']
    for (kind, reason), names in sorted(rest.items()):
        lines += [f'- `{kind}`, {len(names)} configs: {reason.strip()}.',
                  *(f'    - `{name}`' for name in names)]
    return lines


def distribution(module: str) -> str:
    """Name of the package that a module was installed from."""
    return metadata.packages_distributions()[module][0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('hosts', nargs='+')
    parser.add_argument('--out', type=Path, required=True)
    parser.add_argument('--rows', type=Path,
                        help='what was compared so far, to go on from')
    args = parser.parse_args()
    warnings.simplefilter('ignore')
    # What was written by hand stands above the first table.
    lines = [args.out.read_text('utf-8').partition('\n## ')[0]]
    for host in args.hosts:
        lines += [*table(host, *zoo(host, args.rows)), '']
    args.out.write_text('\n'.join(lines), 'utf-8')


if __name__ == '__main__':
    main()
