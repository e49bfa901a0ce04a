# PYTHON_ARGCOMPLETE_OK
"""The command's arguments. Nothing here imports PyTorch: help is quick."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from pickle import UnpicklingError
from pkgutil import resolve_name

from mmstepnet.checks import positive_int
from mmstepnet.version import __version__

from .choices import KINDS, READINGS, RUNGS


def build_parser() -> argparse.ArgumentParser:
    """Arguments of all commands.

    Each command names the function that runs it, ``MODULE:FUNCTION`` beside
    this module. It is given the other arguments by name.
    """
    parser = argparse.ArgumentParser(
        'python -m mmstepnet', description='Residual networks as Euler steps.'
    )
    parser.add_argument(
        '--version', action='version', version=f'mmstepnet {__version__}'
    )
    commands = parser.add_subparsers(required=True)

    stiffness = commands.add_parser(
        'stiffness', help='measure networks on pictures'
    )
    stiffness.set_defaults(run='commands:run_stiffness')
    stiffness.add_argument('models', nargs='+', metavar='MODEL', help=KINDS)
    stiffness.add_argument(
        '--images',
        type=Path,
        help='folder of pictures; a FUNCTION may return its batches instead',
    )
    stiffness.add_argument(
        '--blocks', nargs='+', help='patterns of names of blocks; else all'
    )
    gates = commands.add_parser(
        'gates',
        help='whether an attention adapts to its pictures, or only scales',
    )
    gates.set_defaults(run='commands:run_gates')
    gates.add_argument('models', nargs=1, metavar='MODEL', help=KINDS)
    gates.add_argument(
        'images',
        nargs='?',
        type=Path,
        metavar='FOLDER',
        help='of pictures, unless a FUNCTION returns batches',
    )
    for command in (stiffness, gates):
        add = command.add_argument
        add(
            '--labels',
            action='store_true',
            help='also measure the accuracy: '
            'the folders of the pictures are the classes of the model',
        )
        add(
            '--weights',
            type=Path,
            nargs='+',
            default=[],
            help='files of '
            'weights, one a model, or several of one model, as of its epochs',
        )
        add('--steps', help='file of save_steps')
        add(
            '--samples',
            type=_samples,
            metavar='N',
            help='pictures at most, '
            'evenly drawn, or "all". Default: 256, and all with --labels',
        )
    worth = commands.add_parser(
        'worth', help='whether an attention is worth it on your own pictures'
    )
    worth.set_defaults(run='worth:run_worth')
    add = worth.add_argument
    add('models', nargs=1, metavar='MODEL', help=KINDS)
    add(
        '--images',
        type=Path,
        required=True,
        metavar='FOLDER',
        help='of pictures; the folders in it are the classes',
    )
    add(
        '--val',
        type=Path,
        metavar='FOLDER',
        help='of pictures to test on, of the same classes',
    )
    add(
        '--weights',
        type=Path,
        nargs=1,
        default=[],
        metavar='FILE',
        help='of weights',
    )
    add(
        '--rungs',
        nargs='+',
        choices=RUNGS,
        default=RUNGS,
        metavar='RUNG',
        help=f'what is compared. Default: {", ".join(RUNGS)}',
    )
    add(
        '--samples',
        type=_samples,
        default=5000,
        metavar='N',
        help='pictures at most, evenly drawn, or "all". Default: 5000',
    )
    add(
        '--minutes',
        type=float,
        default=20.0,
        help='how long it may take. Default: 20',
    )
    add(
        '--margin',
        type=float,
        metavar='POINTS',
        help='of accuracy that are worth something. Default: what so many '
        'pictures can show',
    )
    add(
        '--keep',
        choices=RUNGS,
        metavar='RUNG',
        help='train it on all pictures, and write its steps and its head',
    )
    add(
        '--force',
        action='store_true',
        help='also where pictures show only differences above 15 points',
    )
    add(
        '--out',
        type=Path,
        default=Path('worth'),
        help='folder of what is written; called again, the command goes on',
    )
    for command in (stiffness, gates, worth):
        add = command.add_argument
        add('--pretrained', action='store_true', help='fetch the weights')
        add(
            '--batch-size',
            type=positive_int,
            default=16,
            help='pictures at once',
        )
        add('--device', help='cuda where there is one')
    report = commands.add_parser(
        'report', help='make the page anew, of recordings alone'
    )
    report.set_defaults(run='commands:run_report')
    report.add_argument(
        'recordings',
        nargs='+',
        type=Path,
        help='.npz files, or work '
        'directories of StiffnessHook: their last recording, and all over '
        'the training',
    )
    for command in (stiffness, gates, worth, report):
        command.add_argument(
            '--json',
            dest='as_json',
            action='store_true',
            help='print an object a network, a line each',
        )
    for command in (stiffness, report):
        command.add_argument(
            '--reading',
            choices=READINGS,
            default='adaptive',
            help='reading of NSI that is printed and drawn',
        )
        command.add_argument(
            '--out',
            type=Path,
            default=Path('stiffness'),
            help='folder of what is written',
        )

    blocks = commands.add_parser(
        'blocks',
        help='which residual steps a network has, where insert_steps puts a '
        'step, and if not why',
    )
    blocks.set_defaults(run='commands:run_blocks')
    blocks.add_argument('model', metavar='MODEL', help=KINDS)
    blocks.add_argument(
        '--size',
        type=positive_int,
        nargs='+',
        default=[224],
        help='side of the pictures, or height and width',
    )
    blocks.add_argument(
        '--trace',
        action='store_true',
        help='also print the pass: which module is given which tensor',
    )
    env = commands.add_parser('env', help='versions of all that matters')
    env.set_defaults(run='env:run_env')
    return parser


def _samples(text: str) -> int | str:
    if text == 'all':
        return text
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(
            f"must be a positive integer or 'all', got {text!r}"
        )
    return positive_int(text)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; what is wrong with it is one line, and 2."""
    options = vars(build_parser().parse_args(argv))
    run = resolve_name(f'{__package__}.{options.pop("run")}')
    try:
        run(**options)
    except (
        ValueError,
        OSError,
        ImportError,
        RuntimeError,
        AttributeError,
        UnpicklingError,
    ) as error:
        print(f'mmstepnet: {" ".join(str(error).split())}', file=sys.stderr)
        return 2
    return 0
