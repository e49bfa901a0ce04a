"""The commands and their arguments."""

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
import torch.nn as nn
from torch import Tensor

from mmstepnet.checks import positive_int
from mmstepnet.steps.files import load_steps
from mmstepnet.stiffness import (
    DEFAULT_READING,
    READINGS,
    Trajectories,
    find_recordings,
    find_steps,
    measure_stiffness,
    read_trainings,
)
from mmstepnet.stiffness.training import distinct_names

from .env import main as show_environment
from .models import KINDS, NamedModel, load_model

TOP1 = 'accuracy/top1'
FETCHED = 'timm:', 'torchvision:', 'mm:'
"""Models that come without their weights."""

TINY = 1e-4
"""A mean NSI that no trained network has."""

SUFFIXES = '.png', '.jpg', '.jpeg', '.bmp', '.webp', '.tif', '.tiff'


class Parser(argparse.ArgumentParser):
    """Tells what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f'mmstepnet: {message}; {self.prog} --help tells more\n')


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Arguments of all commands."""
    parser = Parser(
        prog='python -m mmstepnet',
        description='Residual networks as Euler steps.')
    commands = parser.add_subparsers(required=True, metavar='COMMAND')

    stiffness = commands.add_parser(
        'stiffness', help='measure networks on pictures or a text',
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        description='Measure the stiffness of networks (NSI and TNS) and '
        'write recordings and a page that compares them.')
    stiffness.add_argument('models', nargs='+', metavar='MODEL', help=KINDS)
    data = stiffness.add_mutually_exclusive_group(required=True)
    data.add_argument('--images', type=Path, help='folder of pictures')
    stiffness.add_argument('--labels', action='store_true', help='measure the '
                           'accuracy, too: the folders of --images, sorted, '
                           'are the classes')
    data.add_argument('--text', type=Path, help='file of text, for hf:')
    data.add_argument('--arrays', type=Path, help='.npy file, what the models '
                      'are called with, samples first')
    stiffness.add_argument('--weights', type=Path, nargs='+', default=[],
                           help='files of weights, one a model, or several of '
                           'one model, as of its epochs')
    stiffness.add_argument('--pretrained', action='store_true',
                           help='let the library fetch its weights')
    stiffness.add_argument('--steps', help='file of save_steps, or '
                           'hf://USER/REPO')
    stiffness.add_argument('--samples', type=positive_int,
                           help='at most so many, evenly drawn from all')
    stiffness.add_argument('--batch-size', type=positive_int, default=16,
                           help='samples that are measured at once')
    stiffness.add_argument('--tokens', type=positive_int, default=256,
                           help='length of a sample of text')
    stiffness.add_argument('--device', default='cuda' if (
        torch.cuda.is_available()) else 'cpu', help='cuda where there is one')
    stiffness.add_argument('--blocks', nargs='+', help='patterns of names of '
                           'the blocks that are measured; all without it')
    stiffness.add_argument('--reading', choices=READINGS,
                           default=DEFAULT_READING,
                           help='reading of NSI that is printed and drawn')
    stiffness.add_argument('--out', type=Path, default=Path('stiffness'),
                           help='folder of the recordings and the page')
    stiffness.set_defaults(run=run_stiffness)

    report = commands.add_parser(
        'report', help='make the page anew, of recordings alone')
    report.add_argument(
        'recordings', nargs='+', type=Path, help='.npz files, or work '
        'directories of StiffnessHook: their last recording, and all over '
        'the training')
    report.add_argument('--reading', choices=READINGS,
                        default=DEFAULT_READING,
                        help='reading of NSI that is printed and drawn')
    report.add_argument('--out', type=Path, default=Path('stiffness'),
                        help='folder of the page')
    report.set_defaults(run=run_report)

    blocks = commands.add_parser(
        'blocks', help='which residual steps a network has, and which are '
        'left out and why')
    blocks.add_argument('model', metavar='MODEL', help=KINDS)
    blocks.add_argument('--size', type=int, nargs='+', default=[224],
                        help='side of the pictures, or height and width')
    blocks.set_defaults(run=run_blocks)

    env = commands.add_parser('env', help='versions of all that matters')
    env.set_defaults(run=run_env)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; what is wrong with it is one line, and 2."""
    args = parse_args(argv)
    try:
        args.run(args)
    except (ValueError, OSError, ImportError) as error:
        print(f'mmstepnet: {_line(error)}', file=sys.stderr)
        return 2
    return 0


def _line(error: Exception) -> str:
    return ' '.join(str(error).split())


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Tell what failed in what somebody else wrote, not where."""
    try:
        yield
    except (ValueError, OSError, ImportError):  # these say it
        raise
    except Exception as error:
        raise ValueError(f'{what} ({type(error).__name__}: '
                         f'{_line(error)[:300]})') from error


def run_stiffness(args: argparse.Namespace) -> None:
    """Measure, print, and write recordings and page."""
    labels = _labels(args) if args.labels else None
    recordings, files = {}, []
    for label, name, weights in _jobs(args.models, args.weights):
        with _told(f'{name} cannot be built'):
            named = load_model(name, args.pretrained)
        if weights is not None:
            _load_weights(named, weights)
        if args.steps is not None:
            load_steps(named.model, args.steps)
        if named.note and not args.arrays:
            print(f'{label}: {named.note}')
        if not (weights or args.pretrained) and name.startswith(FETCHED):
            print(f'{label}: its weights are random; give --weights, or '
                  f'--pretrained')
        with _told(f'--device {args.device} cannot be used'):
            named.model.to(args.device)

        classes: list[Tensor] = []

        def forward(model: nn.Module, batch: Tensor, name: str = name,
                    classes: list[Tensor] = classes):
            with _told(f'{name} does not run on these samples, '
                       f'{tuple(batch.shape)} of {batch.dtype}'):
                out = model(batch)
            if labels is not None:
                classes.append(_classes(name, out, labels))

        found = measure_stiffness(
            named.measured, _shown(label, _batches(named, args), args.device),
            blocks=args.blocks, forward=forward,
            split=str(args.images or args.text or args.arrays),
            **_describe(name, label, weights))
        if labels is not None:
            hits = torch.cat(classes).cpu().numpy() == labels
            found = replace(found, settings={
                **found.settings, 'metrics': {TOP1: 100 * hits.mean()}})
        recordings[label] = found
        files.append(args.out / f'{label}.npz')
        found.save(files[-1])
        _print(label, found, args.reading)
    _page(recordings, files, args.reading, args.out)


def run_report(args: argparse.Namespace) -> None:
    """The page, of recordings."""
    names = distinct_names(args.recordings)
    for name, path in zip(names, args.recordings):
        if names.count(name) > 1:
            raise ValueError(f'{path} is given twice')
    files = [find_recordings(path) for path in args.recordings]
    recordings = {name: Trajectories.load(found[-1])
                  for name, found in zip(names, files)}
    for name, found in recordings.items():
        _print(name, found, args.reading)
    _page(recordings, [file for found in files for file in found],
          args.reading, args.out)


def run_blocks(args: argparse.Namespace) -> None:
    """What is found, on the meta device."""
    with _told(f'{args.model} cannot be built'):
        named = load_model(args.model)
    if len(args.size) > 2:
        raise ValueError(f'--size takes one number, or a height and a width, '
                         f'got {args.size}')
    height, width = (*args.size, *args.size)[:2]
    if named.tokens is not None:
        example = torch.zeros(1, 32, dtype=torch.long, device='meta')
    else:
        example = torch.zeros(1, 3, height, width, device='meta')
    with _told(f'{args.model} does not run on {tuple(example.shape)}; give '
               f'--size'):
        named.model.to('meta').eval()
        steps = find_steps(named.measured, example)
    wide = max((len(step.name) for step in steps), default=0)
    for step in steps:
        shape = ' x '.join(map(str, step.shape[1:]))
        print(f'{step.name:{wide}}  {shape:16} '
              f'{step.left_out or "recorded"}')
    recorded = sum(step.left_out is None for step in steps)
    print(f'{len(steps)} residual steps, {recorded} of them recorded')


def run_env(args: argparse.Namespace) -> None:
    """Versions."""
    show_environment()


def _jobs(models: list[str],
          weights: list[Path]) -> list[tuple[str, str, Path | None]]:
    """Which model with which weights, and what it is called."""
    for path in weights:
        if not path.is_file():
            raise FileNotFoundError(f'there is no file {path}')
    if len(models) == 1 and weights:
        models = models * len(weights)
    if weights and len(models) != len(weights):
        raise ValueError(f'{len(models)} models need as many --weights, got '
                         f'{len(weights)}')
    endings = [f'.{name}' for name in distinct_names(weights)]
    jobs = []
    for name, path, ending in zip(models, weights or [None] * len(models),
                                  endings or [''] * len(models)):
        jobs.append((_short(name) + ending, name, path))
    labels = [label for label, *_ in jobs]
    for label in labels:
        if labels.count(label) > 1:
            raise ValueError(f'two models would be called {label}')
    return jobs


def _short(name: str) -> str:
    return name.rstrip('/').replace(':', '.').rpartition('/')[2]


def _describe(name: str, label: str, weights: Path | None) -> dict:
    """What a recording says of the model and its checkpoint."""
    settings: dict[str, Any] = dict(model=_short(name))
    if weights is not None:
        settings['weights'] = label.removeprefix(f'{_short(name)}.')
        # As OpenMMLab names its checkpoints.
        step = re.fullmatch(r'(epoch|iter)_(\d+)', weights.stem)
        if step:
            settings[step[1]] = int(step[2])
    return settings


def _load_weights(named: NamedModel, path: Path) -> None:
    weights = named.read(path)
    try:
        named.model.load_state_dict(weights)
    except RuntimeError as error:
        raise ValueError(f'{path} holds no weights of this model: '
                         f'{_line(error)[:300]}') from error


def _batches(named: NamedModel, args: argparse.Namespace) -> Iterator[Tensor]:
    if args.arrays is not None:
        try:
            samples = np.load(args.arrays, allow_pickle=False)
        except FileNotFoundError:
            raise ValueError(f'there is no file {args.arrays}') from None
        except Exception as error:  # numpy's advises to trust a pickle
            raise ValueError(f'{args.arrays} is no .npy file of numbers'
                             ) from error
        if not isinstance(samples, np.ndarray) or not samples.ndim:
            raise ValueError(f'{args.arrays} must hold one array, samples '
                             f'first')
        taken = _drawn(len(samples), args.samples)

        def sample(k: int) -> Tensor:
            return torch.from_numpy(samples[k])
    elif args.text is not None:
        if named.tokens is None:
            raise ValueError('this model takes no text; give --images')
        ids = named.tokens(args.text.read_text('utf-8'))
        rows = ids[:len(ids) // args.tokens * args.tokens].view(
            -1, args.tokens)
        taken = _drawn(len(rows), args.samples)

        def sample(k: int) -> Tensor:
            return rows[k]
    else:
        prepare = named.prepare
        if prepare is None:
            raise ValueError('this model takes no pictures; give --text')
        from PIL import Image
        paths = _pictures(args)
        taken = range(len(paths))

        def sample(k: int) -> Tensor:
            try:
                with Image.open(paths[k]) as image:
                    return prepare(image.convert('RGB'))
            except OSError as error:
                raise ValueError(
                    f'{paths[k]} cannot be read: {error}') from error
    if not len(taken):
        raise ValueError(f'there is no sample in {args.text or args.arrays}')
    for start in range(0, len(taken), args.batch_size):
        with _told('the samples make no batch; --batch-size 1 takes each '
                   'alone'):
            batch = torch.stack([
                sample(int(k)) for k in taken[start:start + args.batch_size]])
        yield batch


def _pictures(args: argparse.Namespace) -> list[Path]:
    if not args.images.is_dir():
        raise ValueError(f'there is no folder {args.images}')
    paths = sorted(path for path in args.images.rglob('*')
                   if path.suffix.lower() in SUFFIXES and path.is_file())
    if not paths:
        raise ValueError(f'there is no picture ({", ".join(SUFFIXES)}) in '
                         f'{args.images}')
    return [paths[k] for k in _drawn(len(paths), args.samples)]


def _labels(args: argparse.Namespace) -> np.ndarray:
    """Classes of the pictures, the numbers of their folders."""
    if args.images is None:
        raise ValueError('--labels are the folders of --images; give them')
    folders = [path.relative_to(args.images).parts[0]
               for path in _pictures(args)]
    names = sorted(path.name for path in args.images.iterdir()
                   if path.is_dir())
    if not set(folders) <= set(names):
        raise ValueError(f'--labels needs one folder a class in '
                         f'{args.images}, but pictures lie beside them')
    return np.array([names.index(name) for name in folders])


def _classes(name: str, out: object, labels: np.ndarray) -> Tensor:
    scores = getattr(out, 'logits', out)
    if not isinstance(scores, Tensor) or scores.dim() != 2:
        raise ValueError(f'--labels needs one score a class, which {name} '
                         f'does not give')
    if labels.max() >= scores.shape[1]:
        raise ValueError(f'{name} knows {scores.shape[1]} classes, but '
                         f'--images has {labels.max() + 1} folders')
    return scores.argmax(1)


def _drawn(count: int, samples: int | None) -> np.ndarray:
    """Numbers of samples, evenly drawn."""
    wanted = count if samples is None else min(samples, count)
    return np.linspace(0, count - 1, wanted).round().astype(int)


def _shown(label: str, batches: Iterator[Tensor],
           device: str) -> Iterator[Tensor]:
    """Batches on the device; how many samples there were is shown."""
    seen = 0
    for batch in batches:
        yield batch.to(device)
        seen += len(batch)
        print(f'\r{label}: {seen} samples', end='', flush=True)
    print()


def _print(label: str, found: Trajectories, reading: str) -> None:
    numbers = '  '.join(f'{name} {found.tns(name):.3g}' for name in READINGS)
    low, high = found.tns_interval(reading)
    measured = ''.join(f', {name} {value:.2f} %' for name, value in (
        found.settings.get('metrics') or {}).items() if name == TOP1)
    print(f'{label}: {len(found)} samples, {len(found.blocks)} blocks'
          f'{measured}\n'
          f'  TNS  {numbers}\n'
          f'  TNS ({reading}), 95 % interval over samples  {low:.3g} to '
          f'{high:.3g}\n'
          f'  stiffness proportion ({reading})  '
          f'{found.proportion(reading):.3g}\n'
          f'  stiffest blocks ({reading}): stiffness, mean NSI')
    for name, stiffness, nsi in found.stiffest_blocks(5, reading):
        print(f'    {name}: {stiffness:.3g}, {nsi:.3g}')
    mean = found.nsi(reading).mean()
    if mean < TINY:
        print(f'  the mean NSI of all blocks is {mean:.1g}: their f is all '
              'but 0, as in an untrained network with LayerScale or zero_init')


def _page(recordings: dict[str, Trajectories], files: list[Path],
          reading: str, out: Path) -> None:
    trainings = read_trainings(files, reading)
    for name, training in trainings.items():
        print(f'{name}: TNS ({reading}) by {training.unit}: ' + ', '.join(
            f'{c.step} {c.tns:.3g}' for c in training.checkpoints))
    if None in map(find_spec, ('jinja2', 'matplotlib', 'plotly')):
        print("for the page: pip install 'mmstepnet[figures]', then "
              f'python -m mmstepnet report {out}/*.npz --out {out}')
        return
    from mmstepnet.figures import save_report
    from mmstepnet.figures.runs import Accuracy, Run
    runs = []
    for name, found in recordings.items():
        top1 = (found.settings.get('metrics') or {}).get(TOP1)
        accuracy = None if top1 is None else Accuracy(
            TOP1, top1, 'measured with the NSI', found.settings['split'])
        runs.append(Run(name, name, found, reading, accuracy))
    page = save_report(runs, out, trainings)
    print(page.resolve())
