"""What changes when the type of a zoo's backbone is exchanged for ours.

    python -m tests.zoo.compare mmdet mmpretrain --rows rows.jsonl \
        --out docs/zoo.md

Per setting: outputs in eval mode; where small images are enough, gradients,
outputs and buffers after one step along the gradient of all parameters, which
modules train and which parameters have a gradient; and every attribute that
an argument of the constructor sets. All must be equal to the bit. And outputs
with StepNet at ``init_step=1``, which may round differently.
"""

import argparse
import contextlib
import copy
import json
import re
import warnings
from collections import Counter
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.nn as nn
from mmengine.registry import MODELS, DefaultScope
from torch import Tensor

from mmstepnet import insert_steps, remove_steps
from mmstepnet.models.backbones.host import parameters
from mmstepnet.steps import fused

from .backbones import (
    GUARDS,
    bring,
    config_files,
    exchanged,
    found_in,
    inputs,
    told,
)

OURS_ALONE = {'zero_init_residual'}
"""Defaults that are ours: StepResNet has False, where the hosts have True."""

WARM = 1e-5
"""Largest relative difference of outputs with StepNet at ``init_step=1``."""

LARGEST = 2 * 3 * 96 * 96
"""Most values of an input with which a step is trained."""

HOST, NONE, REFUSED = "the host's own", 'no residual block', 'refused'
"""What verdicts begin with; all others are differences."""

KINDS = 'equal', NONE, REFUSED, HOST, 'different'


def compare(setting: dict) -> str:
    """Compare a host's backbone and ours; empty where they are equal.

    Args:
        setting (dict): Config of the host's backbone, with ``_scope_``.
    """
    setting = copy.deepcopy(setting)
    scope = setting.pop('_scope_')
    with DefaultScope.overwrite_default_scope(scope):
        torch.manual_seed(0)
        try:
            theirs, setting = built(setting)
        except Exception as error:
            return f'{HOST} cannot be built: {said(error)}'
        draw(theirs)
        weights = copy.deepcopy(theirs.state_dict())  # some change with size
        theirs.eval()
        images, expected, error = run(theirs, setting)
        if images is None:
            return f'{HOST} runs on no made-up input: {said(error)}'
        if not all(out.isfinite().all() for out in expected):
            return f'{HOST} outputs are not finite with these weights'
        try:
            ours = MODELS.build(exchanged(setting, scope))
        except (ValueError, RuntimeError, TypeError, KeyError) as error:
            if 'It adds no two tensors' in str(error):
                return NONE
            return f'{REFUSED}: {said(error)}'
        except Exception as error:
            return f'cannot be built: {said(error)}'
        try:
            return '; '.join(differences(
                ours, theirs, weights, images, expected, told(setting)))
        except Exception as error:
            return f'does not run: {said(error)}'


def built(setting: dict) -> tuple[nn.Module, dict]:
    """A host's backbone, and the setting that it took.

    JSON made lists of tuples, which some hosts insist on.
    """
    with without_drawing():
        try:
            return MODELS.build(copy.deepcopy(setting)), setting
        except AssertionError:
            setting = with_tuples(setting)
            return MODELS.build(copy.deepcopy(setting)), setting


def with_tuples(value: Any) -> Any:
    """The same with tuples for lists."""
    if isinstance(value, dict):
        return {key: with_tuples(part) for key, part in value.items()}
    return (tuple(map(with_tuples, value)) if isinstance(value, list)
            else value)


def run(model: nn.Module, setting: dict
        ) -> tuple[Tensor | None, list[Tensor], Exception | None]:
    """The first input that a model takes, and what it returns."""
    failed = None
    for images in inputs(setting):
        try:
            with torch.no_grad():
                outs = tensors(model(images))
        except Exception as error:  # whatever a network raises there
            failed = failed or error
            continue
        if outs:
            return images, outs, None
    return None, [], failed


def tensors(outs: object) -> list[Tensor]:
    """All tensors of an output, in their order."""
    if isinstance(outs, Tensor):
        return [outs]
    if isinstance(outs, dict):
        outs = list(outs.values())
    return [t for out in outs for t in tensors(out)] if isinstance(
        outs, (list, tuple)) else []


def said(error: Exception) -> str:
    """An error in a line, without this machine's folders."""
    text = re.sub(r"[^ '\"]*/site-packages/", '', str(error))
    text = text.partition(', the current sys.path is')[0]
    return f'{type(error).__name__}: {" ".join(text.split())[:200]}'


def differences(ours: nn.Module, theirs: nn.Module,
                weights: dict[str, Tensor], images: Tensor,
                expected: list[Tensor],
                options: dict) -> Iterator[str]:
    """Say what differs between two backbones, if anything."""
    try:
        ours.load_state_dict(weights)
    except RuntimeError as error:
        yield f'other keys: {error}'
        return
    for name in parameters(type(theirs)).keys() - OURS_ALONE:
        values = [getattr(model, name, None) for model in (ours, theirs)]
        if not isinstance(values[0], nn.Module) and repr(values[0]) != repr(
                values[1]):
            yield f'{name} is {values[0]!r}, not {values[1]!r}'
    ours.eval()  # which returns None in the hosts
    with torch.no_grad():
        if not same(tensors(ours(images)), expected):
            yield 'other outputs in eval mode'
    warm = copy.deepcopy(ours)
    insert_warm_steps(warm, **options)
    warm.eval()
    with torch.no_grad(), fused(False):
        worst = max(float((a - b).float().norm()
                          / b.float().norm().clamp(min=1e-9))
                    for a, b in zip(tensors(warm(images)), expected))
    if not worst <= WARM:
        yield f'outputs with StepNet at 1 differ by {worst:.1e}'
    if images.numel() > LARGEST:
        return
    for module in theirs.modules():
        if getattr(module, 'with_cp', False):
            # Checkpoints of theirs add up gradients in another order.
            module.with_cp = False
    after = [one_step(model, images) for model in (ours, theirs)]
    for name, a, b in zip(('outputs', 'buffers', 'gradients'), *after):
        if not same(a, b):
            yield f'other {name} after a step'
    modes = [{name: (m.training, [p.requires_grad for p in m.parameters()])
              for name, m in model.named_modules()}
             for model in (ours, theirs)]
    if any(modes[0][name] != mode for name, mode in modes[1].items()):
        yield 'other modules train'


def insert_warm_steps(model: nn.Module, example: tuple[int, ...] | None = None,
                      **options) -> None:
    """StepNet in all blocks."""
    remove_steps(model)
    insert_steps(
        model, 'StepNet', first_block=True,
        example=None if example is None else torch.zeros(example), **options)


def one_step(model: nn.Module, images: Tensor) -> tuple:
    """Outputs and buffers after one step of SGD, and its gradients."""
    model.train()
    torch.manual_seed(0)  # of stochastic depth and dropout
    loss = sum((out * torch.randn(out.shape)).mean()
               for out in tensors(model(images)))
    if loss.requires_grad:  # not where all stages are frozen
        loss.backward()
    moved = [p for p in model.parameters() if p.grad is not None]
    with torch.no_grad():
        for p in moved:  # of a length that no network blows up with
            p -= 1e-3 * p.grad / p.grad.abs().max().clamp(min=1e-12)
        torch.manual_seed(0)
        outs = tensors(model(images))
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
            fan = value[0].numel() if value.dim() else 1
            if fan > 1:
                value.copy_(some).mul_((2 / fan)**0.5)
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
    bring(host)
    for path in config_files(host):
        name = path.as_posix().partition('configs/')[2]
        try:
            configs[name] = found_in(path)
        except Exception as error:  # of a base or a module that is missing
            configs[name] = [f'cannot be read: {said(error)}']
            verdicts[configs[name][0]] = f'{HOST} config {configs[name][0]}'
    settings = one_of_each_first({
        s for found in configs.values() for s in found})
    for k, setting in enumerate(settings, 1):
        if setting in verdicts:
            continue
        verdicts[setting] = compare(json.loads(setting))
        print(f'{host} {k}/{len(settings)}', verdicts[setting] or 'equal',
              setting, flush=True)
        if rows is not None:
            with rows.open('a', encoding='utf-8') as file:
                print(json.dumps([setting, verdicts[setting]]), file=file)
    return ({name: found for name, found in configs.items() if found},
            {setting: verdicts[setting] for setting in settings})


def one_of_each_first(settings: set[str]) -> list[str]:
    """Settings in an order that goes round the backbones' types."""
    number, rounds = Counter(), {}
    for setting in sorted(settings):
        type_ = json.loads(setting)['type'] if setting[0] == '{' else ''
        rounds[setting] = number[type_]
        number[type_] += 1
    return sorted(rounds, key=rounds.get)


def kind(verdict: str) -> str:
    """What a verdict says, of :data:`KINDS`."""
    return 'equal' if not verdict else next(
        (k for k in KINDS if verdict.startswith(k)), 'different')


def worst(found: list[str], verdicts: dict[str, str]) -> tuple[str, str]:
    """Kind and verdict of a config, which may have several backbones."""
    order = NONE, 'equal', HOST, REFUSED, 'different'
    return max(((kind(verdicts[s]), verdicts[s]) for s in found),
               key=lambda pair: order.index(pair[0]))


def summary(host: str, configs: dict, verdicts: dict) -> str:
    """A row of the first table."""
    counts = Counter(worst(found, verdicts)[0] for found in configs.values())
    lifted = ', '.join(f'{name} {version}' for name, version in GUARDS.get(
        host, {}).items())
    return (f'| [{host}](#{host}) {metadata.version(distribution(host))} '
            f'| {len(configs)} | '
            + ' | '.join(str(counts[k]) for k in KINDS) + f' | {lifted} |')


def reason(verdict: str) -> str:
    """The first sentence of a verdict, without the class of the error."""
    text = re.sub(
        r"\bKeyError: '|\b\w+(Error|Exception): ", '', verdict, count=1)
    text = re.sub(r' \([^)]*\)', '', text).replace('|', r'\|').strip()
    text = re.split(r'[.!] (?=[A-Z])|;', text)[0].rstrip('.:`')
    return text if len(text) < 150 else f'{text[:140].rsplit(" ", 1)[0]} …'


def table(host: str, configs: dict, verdicts: dict) -> list[str]:
    """Markdown: how many configs of each type are equal, and which not."""
    types, rest = {}, Counter()
    for found in configs.values():
        k, verdict = worst(found, verdicts)
        first = json.loads(found[0])['type'] if found[0][0] == '{' else '–'
        types.setdefault(first, Counter())[k] += 1
        if k not in ('equal', NONE):
            rest[first, reason(verdict)] += 1
    lines = [host, '',
             '| type | ' + ' | '.join(KINDS) + ' |',
             '|---' * (len(KINDS) + 1) + '|']
    lines += [f'| `{first}` | ' + ' | '.join(str(counts[k]) for k in KINDS)
              + ' |' for first, counts in sorted(
                  types.items(), key=lambda item: -item[1].total())]
    if rest:
        lines += ['', 'Not equal:', '', '| type | configs | why |',
                  '|---|---|---|']
    return lines + [f'| `{first}` | {count} | {why} |'
                    for (first, why), count in sorted(rest.items())]


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
    args.out.touch()
    head, *sections = args.out.read_text('utf-8').split('\n## ')
    head, _, old = head.partition('\n| project')
    # What was found in other environments stays.
    rows = {line.split(']')[0][3:]: line for line in old.splitlines()
            if line.startswith('| [')}
    texts = {text.split('\n')[0]: text.rstrip() for text in sections}
    for host in args.hosts:
        zoos = zoo(host, args.rows)
        rows[host] = summary(host, *zoos)
        texts[host] = '\n'.join(table(host, *zoos)).rstrip()
    names = sorted(rows)
    args.out.write_text('\n'.join([
        head.rstrip(), '',
        '| project | configs with a backbone | ' + ' | '.join(KINDS)
        + ' | told that it has |', '|---' * (len(KINDS) + 3) + '|',
        *(rows[name] for name in names), '',
        *(f'## {texts[name]}\n' for name in names)]), 'utf-8')


if __name__ == '__main__':
    main()
