"""The commands themselves: measure, print, and write pages."""

import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn as nn
from PIL import Image
from torch import Tensor

from mmstepnet.steps.examples import arguments_for, call_of, run_batch
from mmstepnet.steps.insert import explain_blocks
from mmstepnet.stiffness import (
    Trajectories,
    find_recordings,
    find_steps,
    measure_gates,
    measure_stiffness,
)
from mmstepnet.stiffness.gates import HARDLY_MOVED, GateStatistics
from mmstepnet.stiffness.training import (
    distinct_names,
    find_networks,
    read_trainings,
)
from mmstepnet.tracing import trace_pass

from .choices import READINGS
from .models import NamedModel, build_model
from .networks import load_networks
from .pictures import Pictures

TOP1 = 'accuracy/top1'

SIDE = 224
"""Of a picture that stands for all where none is given, in pixels."""


def run_stiffness(
    *,
    models: list[str],
    weights: list[Path],
    pretrained: bool,
    steps: str | None,
    device: str | None,
    pictures: Pictures | None,
    labels: bool,
    blocks: list[str] | None,
    reading: str,
    out: Path,
    as_json: bool,
) -> None:
    """Measure, print, and write recordings and page."""
    recordings: dict[str, Trajectories] = {}
    files: list[Path] = []
    for network in load_networks(
        models, weights, steps, pretrained, device, labels
    ):
        recording = _measure(network, pictures, blocks, reading)
        path = out / f'{network.label}.npz'
        recording.save(path)
        _print_recording(network.label, recording, as_json)
        recordings[network.label] = recording
        files.append(path)
    _write_page(recordings, files, out, as_json)


def run_gates(
    *,
    models: list[str],
    weights: list[Path],
    pretrained: bool,
    steps: str | None,
    device: str | None,
    pictures: Pictures | None,
    labels: bool,
    as_json: bool,
) -> None:
    """Measure the attention values, and constants in their place."""
    for network in load_networks(
        models, weights, steps, pretrained, device, labels
    ):
        network.model.eval()
        gates = measure_gates(
            network.measured,
            (batch for batch, _ in network.samples(pictures)),
            partial(_accuracy, network, pictures) if labels else None,
        )
        if as_json:
            print(json.dumps(dict(network=network.label, **gates._asdict())))
        else:
            _print_gates(network.label, gates)


def run_report(
    *, recordings: list[Path], reading: str, out: Path, as_json: bool
) -> None:
    """Print recordings, and write their page."""
    shown: dict[str, Trajectories] = {}
    files: list[Path] = []
    networks = [each for path in recordings for each in find_networks(path)]
    for name, path in zip(distinct_names(networks), networks):
        of_training = find_recordings(path)
        files += of_training
        shown[name] = _with_settings(
            Trajectories.load(of_training[-1]), reading=reading
        )
    for name, recording in shown.items():
        _print_recording(name, recording, as_json)
    _write_page(shown, files, out, as_json)


def run_blocks(
    *,
    model: str,
    pictures: Pictures | None,
    size: list[int] | None,
    trace: bool,
) -> None:
    """Print the residual steps of a model, run on the meta device."""
    named = build_model(model)
    example = _example(named, pictures, size)
    measured = named.measured.to('meta')
    inputs, by_name = arguments_for(measured, example)
    inputs, by_name = call_of(inputs or by_name, device='meta')
    if trace:
        print(trace_pass(measured, *inputs, **by_name))
    steps = find_steps(measured, *inputs, **by_name)
    lines = explain_blocks(measured, inputs or by_name)
    width = max((len(step.name) for step in steps), default=0)
    for step in steps:
        shape = ' x '.join(map(str, step.shape[1:]))
        print(f'{step.name:{width}}  {shape:16} {step.left_out or "recorded"}')
        for line in lines.pop(step.block or step.owner, ()):
            print(f'    {line}')
    for name, rest in lines.items():
        print(f'{name or "insert_steps"}: {"; ".join(rest)}')
    recorded = sum(step.left_out is None for step in steps)
    print(f'{len(steps)} residual steps, {recorded} of them recorded')


def _example(
    named: NamedModel, pictures: Pictures | None, size: list[int] | None
) -> Any:
    """What a model is called with, only whose shape matters."""
    if size is not None:
        return torch.zeros(1, 3, size[0], size[-1])
    if pictures is not None:
        (path, _), *_ = pictures.files
        return named.picture(path)[None]
    if named.batches is not None:
        return next(iter(named.batches))
    if named.transform is not None:
        return named.transform(Image.new('RGB', (SIDE, SIDE)))[None]
    return torch.zeros(1, 3, SIDE, SIDE)


def _measure(
    network: NamedModel,
    pictures: Pictures | None,
    blocks: list[str] | None,
    reading: str,
) -> Trajectories:
    """Record a network, and its accuracy where the pictures have classes."""
    correct: list[Tensor] = []

    def forward(measured: nn.Module, sample: tuple) -> None:
        batch, classes = sample
        out = run_batch(network.run, batch)
        if classes:
            correct.append(network.is_correct(out, classes))

    recording = measure_stiffness(
        network.measured,
        network.samples(pictures),
        blocks=blocks,
        forward=forward,
        reading=reading,
        split=str(pictures.folder if pictures else network.label),
        **network.settings,
    )
    metrics = {TOP1: _percentage(correct)} if correct else {}
    return _with_settings(recording, metrics=metrics)


def _accuracy(
    network: NamedModel, pictures: Pictures | None, measured: nn.Module
) -> float:
    """Accuracy of a network, in %, as :func:`measure_gates` asks for it."""
    return _percentage(
        [
            network.is_correct(run_batch(network.run, batch), classes)
            for batch, classes in network.samples(pictures)
        ]
    )


def _percentage(correct: list[Tensor]) -> float:
    return 100 * torch.cat(correct).double().mean().item()


def _with_settings(recording: Trajectories, **settings: Any) -> Trajectories:
    return replace(recording, settings={**recording.settings, **settings})


def _print_recording(
    label: str, recording: Trajectories, as_json: bool
) -> None:
    """Print a recording in the reading of its settings."""
    reading = recording.settings['reading']
    metrics = recording.settings.get('metrics') or {}
    if as_json:
        nsi = recording.nsi(reading).mean(0, dtype=float).tolist()
        row = dict(
            network=label,
            samples=len(recording),
            reading=reading,
            tns={name: recording.tns(name) for name in READINGS},
            tns_all_blocks={
                name: recording.tns(name, 'all') for name in READINGS
            },
            tns_interval=recording.tns_interval(reading),
            metrics=metrics,
            nsi=dict(zip(recording.blocks, nsi)),
        )
        print(json.dumps(row))
        return
    print(_with_settings(recording, model=label))
    for name, value in metrics.items():
        print(f'{name}: {value:.2f}')


def _print_gates(label: str, gates: GateStatistics) -> None:
    """Print a table of the gates, and the names of those that are not in."""
    if gates.mean:
        width = max(map(len, gates.mean))
        print(
            f'{label}: {gates.over_blocks:#.4g} is the deviation over blocks'
        )
        if gates.hardly_moved:
            print(HARDLY_MOVED)
        print(' ' * width, '  mean of Δt  over images  over channels')
        for name, mean in gates.mean.items():
            row = mean, gates.over_images[name], gates.over_channels[name]
            print(f'{name:{width}}', *(f'{value:#12.4g}' for value in row))
    else:
        print(f'{label}: no attention value that could adapt')
    if gates.constant:
        print(f'A scale by construction: {", ".join(gates.constant)}')
    if gates.elsewhere:
        print(
            f'Gates inside the branch or of no residual step, not measured '
            f'and not replaced: {", ".join(gates.elsewhere)}'
        )
    for kind, value in gates.results.items():
        print(f'{TOP1} with {kind}: {value:.2f}')


def _write_page(
    recordings: dict[str, Trajectories],
    files: list[Path],
    out: Path,
    as_json: bool,
) -> None:
    """Write the page of some recordings, and print where it is.

    Args:
        recordings (dict): The recordings, by their labels.
        files (list[Path]): Recordings of whole trainings.
        out (Path): Folder of the page.
        as_json (bool): Whether other programs read what is printed.
    """
    try:
        from mmstepnet.figures import Accuracy, Run, save_report
    except ImportError as error:
        print(f'no page: {error}', file=sys.stderr)
        return
    runs = []
    for label, recording in recordings.items():
        settings = recording.settings
        top1 = (settings.get('metrics') or {}).get(TOP1)
        accuracy = None
        if top1 is not None:
            accuracy = Accuracy(
                TOP1, top1, 'measured with the NSI', settings['split']
            )
        runs.append(
            Run(label, label, recording, settings['reading'], accuracy)
        )
    page = save_report(runs, out, read_trainings(files))
    print(page.resolve(), file=sys.stderr if as_json else None)
