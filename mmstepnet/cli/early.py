"""What is wrong with a command, as far as it is seen without PyTorch.

Each function is given the options of its command, as the parser read them. It
refuses them, or replaces those that it has worked out, such as a folder by
its pictures.
"""

import sys
from pathlib import Path
from typing import Any

from .choices import KINDS
from .pictures import Pictures, pictures_of

LIBRARIES = 'timm', 'torchvision', 'hf', 'mm'
"""What may stand before the colon of a model that a library has."""

PACKAGES = (
    'PIL',
    'altair',
    'jinja2',
    'mmstepnet',
    'numpy',
    'torch',
    'torchvision',
    'vl_convert',
)
"""What the command imports, also after it has run a user's file."""


def check_measuring(options: dict[str, Any]) -> None:
    """Look at the options of a command that measures models on pictures."""
    names = options['models']
    for name in names:
        check_model(name)
    folder = options.pop('folder', None)
    images = options.pop('images')
    if folder and images:
        raise ValueError(
            f'two folders of pictures are given, {folder} and {images}; leave '
            f'one of them out'
        )
    images = images or folder
    for name in names:
        if images is None and is_of_a_library(name):
            raise ValueError(
                f'{name} needs pictures: give --images FOLDER, and 256 of '
                f'those in it are measured'
            )
    check_weights(options)
    steps = options['steps']
    if steps is not None and not Path(steps).exists():
        raise ValueError(f'there is no file {steps}, given by --steps')
    check_out(options)
    options['pictures'] = pictures_of(
        images,
        options['labels'],
        options.pop('samples'),
        options.pop('batch_size'),
    )


def check_worth(options: dict[str, Any]) -> None:
    """Look at the options of a trial on somebody's pictures."""
    (name,) = options['models']
    check_model(name)
    check_weights(options)
    check_out(options)
    keep, rungs = options['keep'], options['rungs']
    if keep is not None and keep not in rungs:
        raise ValueError(
            f'--keep {keep} is not compared; give --rungs {keep}, too, beside '
            f'{", ".join(rungs)}'
        )
    samples = options.pop('samples')
    for key in ('images', 'val'):
        if options[key] is not None:
            options[key] = Pictures(options[key], True, samples)


def check_weights(options: dict[str, Any]) -> None:
    """Refuse files of weights that are not there."""
    for path in options['weights']:
        if not path.is_file():
            raise ValueError(f'there is no file {path}, given by --weights')


def check_report(options: dict[str, Any]) -> None:
    """Look at the options of the page of recordings."""
    for path in options['recordings']:
        if not path.exists():
            raise ValueError(
                f'there is no file {path}; give recordings, which end in .npz'
            )
    check_out(options)


def check_blocks(options: dict[str, Any]) -> None:
    """Look at the options of the list of blocks."""
    check_model(options['model'])
    options['pictures'] = pictures_of(
        options.pop('images'), labels=False, samples=1, batch_size=1
    )


def check_nothing(options: dict[str, Any]) -> None:
    """Look at the options of a command that has none."""


def check_out(options: dict[str, Any]) -> None:
    """Refuse a file where files are to be written."""
    out = options.get('out')
    if out is not None and out.exists() and not out.is_dir():
        raise ValueError(f'{out} is a file, and --out takes a folder')


def is_of_a_library(name: str) -> bool:
    """Whether a library has the model, and no file of the user's."""
    kind, _, rest = name.partition(':')
    return kind in LIBRARIES and bool(rest)


def check_model(name: str) -> None:
    """Refuse what cannot be the name of a model.

    Args:
        name (str): As in :data:`~.choices.KINDS`.

    Raises:
        ValueError: It has no such form, or its file is not there.
    """
    if is_of_a_library(name):
        kind, _, rest = name.partition(':')
        if kind == 'mm' and not Path(rest).is_file():
            raise ValueError(f'there is no config file {rest!r}')
        # Names on the hub are OWNER/NAME.
        is_path = rest[0] in './~' or rest.count('/') > 1
        if kind == 'hf' and is_path and not Path(rest).is_dir():
            raise ValueError(f'there is no folder {rest!r}')
        return
    path, _, function = name.rpartition(':')
    if not path.endswith('.py') or not function:
        raise ValueError(f'{name!r} names no model; {_advice(name)}')
    if not Path(path).is_file():
        raise ValueError(f'there is no file {path!r}')
    stem = Path(path).stem
    for kind, names in (
        ("Python's module", sys.stdlib_module_names),
        ('the package', PACKAGES),
    ):
        if stem in names:
            raise ValueError(f'{path} hides {kind} {stem}; rename it')


def _advice(name: str) -> str:
    """How a model's name is written, as near to what was meant as can be."""
    path = name.rstrip(':')
    if path.endswith('.py'):
        return f'name its function, too: {path}:FUNCTION'
    if ':' not in name:
        return (
            f'say where it comes from, as in timm:{name} or '
            f'torchvision:{name}, or give {KINDS}'
        )
    return f'give {KINDS}'
