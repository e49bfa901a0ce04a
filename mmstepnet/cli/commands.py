"""What the commands do."""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn as nn
from torch import Tensor
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present
from tqdm import tqdm

from mmstepnet.steps.examples import arguments_for, call_of, run_batch
from mmstepnet.steps.files import load_steps
from mmstepnet.steps.insert import explain_blocks
from mmstepnet.stiffness import (
    Trajectories,
    find_steps,
    measure_gates,
    measure_stiffness,
)
from mmstepnet.stiffness.training import (
    distinct_names,
    find_recordings,
    read_trainings,
)
from mmstepnet.tracing import trace_pass

from .arguments import READINGS
from .env import run_env as run_env
from .models import NamedModel, load_model
from .pictures import list_pictures

TOP1 = 'accuracy/top1'
WRAPPERS = 'module.', '_orig_mod.', 'model.'
"""Prefixes of DistributedDataParallel, torch.compile and Lightning."""

FEW = 256
"""Pictures that are measured where nobody says how many."""

FETCHED = 'timm:', 'torchvision:', 'mm:', 'hf:'
"""Models that come without their weights."""


def run_stiffness(args: argparse.Namespace) -> None:
    """Measure, print, and write recordings and page."""
    recordings = {}
    for label, named, settings in _networks(args):
        recordings[label] = found = _measure(named, label, args, settings)
        found.save(args.out / f'{label}.npz')
        _print(label, found, args)
    _page(recordings, [args.out / f'{name}.npz' for name in recordings], args)


def run_gates(args: argparse.Namespace) -> None:
    """Measure the attention values, and what constants do in their place."""
    for label, named, _ in _networks(args):
        named.model.eval()
        found = measure_gates(
            named.measured,
            (batch for batch, _ in _samples(named, label, args)),
            partial(_accuracy, named, label, args) if args.labels else None,
        )
        if args.json:
            print(json.dumps(dict(network=label, **found._asdict())))
            continue
        if found.mean:
            wide = max(map(len, found.mean))
            print(
                f'{label}: {found.over_blocks:.4f} is the deviation over '
                f'blocks'
            )
            print(' ' * wide, '  mean of Δt  over images  over channels')
            for name, *row in zip(
                found.mean, *(values.values() for values in found[:3])
            ):
                print(f'{name:{wide}}', *(f'{value:12.4f}' for value in row))
        else:
            print(f'{label}: no attention value that could adapt')
        for names, what in (
            (found.constant, 'A scale by construction'),
            (
                found.elsewhere,
                'Gates inside the branch or of no residual '
                'step, not measured and not replaced',
            ),
        ):
            if names:
                print(f'{what}: {", ".join(names)}')
        for kind, value in found.results.items():
            print(f'{TOP1} with {kind}: {value:.2f}')


def _accuracy(
    named: NamedModel,
    label: str,
    args: argparse.Namespace,
    measured: nn.Module,
) -> float:
    hits = [
        _hits(run_batch(named.run, batch), named, label, folders)
        for batch, folders in _samples(named, label, args)
    ]
    return 100 * torch.cat(hits).double().mean().item()


def _networks(
    args: argparse.Namespace,
) -> Iterator[tuple[str, NamedModel, dict[str, Any]]]:
    """Each network with its weights on its device, by what it is called."""
    device = args.device or ('cuda' if torch.cuda.is_available() else 'cpu')
    for label, (name, weights) in _jobs(args.models, args.weights).items():
        named = load_model(name, args.pretrained, args.labels)
        settings: dict[str, Any] = dict(model=_short(name))
        if weights is not None:
            _load_weights(named, weights)
            settings['weights'] = label.removeprefix(f'{_short(name)}.')
        if args.steps is not None:
            load_steps(named.model, args.steps)
            settings['steps'] = str(args.steps)
        if name.startswith(FETCHED) and not (
            weights
            or args.pretrained
            or Path(name.removeprefix('hf:')).is_dir()
        ):
            settings['untrained'] = True
            print(
                f'{label}: its weights are random; give --weights, or '
                f'--pretrained',
                file=sys.stderr,
            )
        named.model.to(device)
        if args.labels and args.images is not None:
            _name_classes(named, label, args.images)
        yield label, named, settings


def _name_classes(named: NamedModel, label: str, images: Path) -> None:
    """Where the model has other names than the folders, the order counts."""
    folders = dict.fromkeys(name for _, name in list_pictures(images, True))
    if named.classes.keys() >= folders.keys():
        return
    if named.classes:
        print(
            f'{label}: its config has other names than the folders, so '
            f'these are its classes in alphabetical order',
            file=sys.stderr,
        )
    named.classes = {name: k for k, name in enumerate(folders)}


def run_report(args: argparse.Namespace) -> None:
    """The page, of recordings."""
    names = distinct_names(args.recordings)
    files = [find_recordings(path) for path in args.recordings]
    recordings = {
        name: Trajectories.load(found[-1]) for name, found in zip(names, files)
    }
    for name, found in recordings.items():
        _print(name, found, args)
    _page(recordings, [file for found in files for file in found], args)


def run_blocks(args: argparse.Namespace) -> None:
    """What is found, on the meta device."""
    named = load_model(args.model)
    example = (
        torch.zeros(1, 3, args.size[0], args.size[-1])
        if named.batches is None
        else next(iter(named.batches))
    )
    measured = named.measured.to('meta')
    inputs, by_name = arguments_for(measured, example)
    inputs, by_name = call_of(inputs or by_name, device='meta')
    if args.trace:
        print(trace_pass(measured, *inputs, **by_name))
    steps = find_steps(measured, *inputs, **by_name)
    lines = explain_blocks(measured, inputs or by_name)
    wide = max((len(step.name) for step in steps), default=0)
    for step in steps:
        shape = ' x '.join(map(str, step.shape[1:]))
        print(f'{step.name:{wide}}  {shape:16} {step.left_out or "recorded"}')
        for line in lines.pop(step.block or step.owner, ()):
            print(f'    {line}')
    for name, rest in lines.items():
        print(f'{name or "insert_steps"}: {"; ".join(rest)}')
    recorded = sum(step.left_out is None for step in steps)
    print(f'{len(steps)} residual steps, {recorded} of them recorded')


def _jobs(
    models: list[str], weights: list[Path]
) -> dict[str, tuple[str, Path | None]]:
    """Which model with which weights, by what it is called."""
    if len(models) == 1 and weights:
        models = models * len(weights)
    if weights and len(models) != len(weights):
        raise ValueError(
            f'{len(models)} models need as many --weights, got {len(weights)}'
        )
    labels = list(map(_short, models))
    if weights:
        labels = list(map('.'.join, zip(labels, distinct_names(weights))))
    if len(set(labels)) < len(labels):
        raise ValueError(
            f'two models would be called {max(labels, key=labels.count)}'
        )
    return dict(zip(labels, zip(models, weights or [None] * len(models))))


def _short(name: str) -> str:
    return name.rstrip('/').replace(':', '.').rpartition('/')[2]


def _load_weights(named: NamedModel, path: Path) -> None:
    """Load a file, also of the network inside a wrapper."""
    weights = named.read(path)
    for prefix in WRAPPERS:
        if not next(iter(named.model.state_dict())).startswith(prefix):
            consume_prefix_in_state_dict_if_present(weights, prefix)
    named.model.load_state_dict(weights)


def _measure(
    named: NamedModel,
    label: str,
    args: argparse.Namespace,
    settings: dict[str, Any],
) -> Trajectories:
    hits: list[Tensor] = []

    def forward(measured: nn.Module, sample: tuple) -> None:
        batch, folders = sample
        out = run_batch(named.run, batch)
        if args.labels:
            hits.append(_hits(out, named, label, folders))

    found = measure_stiffness(
        named.measured,
        _samples(named, label, args),
        blocks=args.blocks,
        forward=forward,
        reading=args.reading,
        split=str(args.images or label),
        **settings,
    )
    metrics = (
        {TOP1: 100 * torch.cat(hits).double().mean().item()} if hits else {}
    )
    return replace(found, settings={**found.settings, 'metrics': metrics})


def _hits(
    out: Any, named: NamedModel, label: str, folders: Sequence[str]
) -> Tensor:
    """Of which pictures the likeliest class is right."""
    scores = getattr(out, 'logits', out)
    if not isinstance(scores, Tensor):
        raise ValueError(
            f'{label} gives no scores of classes, which --labels '
            f'needs, but a {type(out).__name__}'
        )
    if scores.shape != (len(folders), len(named.classes)):
        raise ValueError(
            f'{label} gives scores of shape {tuple(scores.shape)}, but '
            f'--labels has {len(named.classes)} folders, one a class'
        )
    wanted = [named.classes[name] for name in folders]
    return scores.argmax(1).cpu() == torch.tensor(wanted)


def _samples(
    named: NamedModel, label: str, args: argparse.Namespace
) -> Iterator[tuple[Any, Sequence[str]]]:
    """Batches and the folders of their pictures, with a bar."""
    device = next(named.model.parameters()).device
    if args.images is None and named.batches is not None:
        for batch in tqdm(named.batches, label):
            inputs, by_name = call_of(batch, device=str(device))
            yield inputs or by_name, []
        return
    if args.images is None or named.prepare is None:
        raise ValueError(
            f'{label} needs pictures and a transform of them, or '
            f'a FUNCTION that returns a model and its batches'
        )
    pictures = _draw(list_pictures(args.images, args.labels), args)
    for start in tqdm(range(0, len(pictures), args.batch_size), label):
        paths, folders = zip(*pictures[start : start + args.batch_size])
        batch = torch.stack(list(map(named.picture, paths))).to(device)
        yield batch, folders


def _draw(found: list, args: argparse.Namespace) -> list:
    """Those of the pictures that are measured, evenly over the list."""
    if args.samples is None:  # from here on chosen, and said once
        args.samples = 'all' if args.labels else FEW
        if args.samples != 'all' and len(found) > FEW:
            print(
                f'{FEW} of {len(found)} pictures are measured, evenly '
                f'drawn; --samples all measures every one',
                file=sys.stderr,
            )
    if args.samples == 'all' or len(found) <= args.samples:
        return found
    places = np.linspace(0, len(found) - 1, args.samples).round().astype(int)
    return [found[k] for k in places]


def _print(label: str, found: Trajectories, args: argparse.Namespace) -> None:
    metrics = found.settings.get('metrics') or {}
    if args.json:
        print(
            json.dumps(
                dict(
                    network=label,
                    samples=len(found),
                    reading=args.reading,
                    tns={name: found.tns(name) for name in READINGS},
                    tns_all_blocks={
                        name: found.tns(name, 'all') for name in READINGS
                    },
                    tns_interval=found.tns_interval(args.reading),
                    metrics=metrics,
                    nsi=dict(
                        zip(
                            found.blocks,
                            found.nsi(args.reading)
                            .mean(0, dtype=float)
                            .tolist(),
                        )
                    ),
                )
            )
        )
        return
    print(
        replace(
            found,
            settings={
                **found.settings,
                'model': label,
                'reading': args.reading,
            },
        )
    )
    for name, value in metrics.items():
        print(f'{name}: {value:.2f}')


def _page(
    recordings: dict[str, Trajectories],
    files: list[Path],
    args: argparse.Namespace,
) -> None:
    try:
        from mmstepnet.figures import Accuracy, Run, save_report
    except ImportError as error:
        print(f'no page: {error}', file=sys.stderr)
        return
    runs = []
    for name, found in recordings.items():
        top1 = (found.settings.get('metrics') or {}).get(TOP1)
        accuracy = (
            None
            if top1 is None
            else Accuracy(
                TOP1, top1, 'measured with the NSI', found.settings['split']
            )
        )
        runs.append(Run(name, name, found, args.reading, accuracy))
    page = save_report(runs, args.out, read_trainings(files))
    print(page.resolve(), file=sys.stderr if args.json else None)
