# PYTHON_ARGCOMPLETE_OK
"""The command's arguments. Nothing here imports PyTorch: help is quick."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from pkgutil import resolve_name

from mmstepnet.checks import positive_int
from mmstepnet.version import __version__

from . import early
from .choices import KINDS, READINGS, RUNGS
from .wording import REFUSALS, in_one_line

PROGRAM = 'python -m mmstepnet'

ABOUT = f"""\
Measure how stiff a trained residual network is, and see why.

A residual block adds something to its input. Where it adds much at once, the
network is stiff there. Start with a network of timm and a folder of pictures:

    {PROGRAM} stiffness timm:resnet50 --pretrained --images PICTURES
"""
STIFFNESS = f"""\
Measure how much each residual block changes its input, on your pictures.

    {PROGRAM} stiffness timm:resnet50 --pretrained --images PICTURES

prints a table, and writes a recording of each network and one page of figures
that compares them.
"""
GATES = f"""\
See whether the attention of a network looks at its pictures, or only scales.

    {PROGRAM} gates timm:seresnet50 --pretrained --images PICTURES

prints for each block the mean of its attention value, and how much the value
differs from picture to picture and from channel to channel.
"""
WORTH = f"""\
Find out whether an attention is worth it on your own labelled pictures.

    {PROGRAM} worth timm:resnet18 --pretrained --images FOLDER

trains the head of the network alone, and the head with what is compared, on
four fifths of the pictures, five times. It ends with a table and a sentence.
"""
REPORT = f"""\
Make the page of figures anew, of recordings that were written before.

    {PROGRAM} report stiffness/timm.resnet50.npz --out page
"""
BLOCKS = f"""\
List the residual blocks of a network, and where an attention can be put in.

    {PROGRAM} blocks timm:resnet50

computes no values, so it needs neither weights nor pictures. It says of each
block whether its stiffness is measured, whether insert_steps puts a step
there, and if not why.
"""
ENV = f"""\
Print the versions of all that matters, for the report of a problem.

    {PROGRAM} env
"""


def build_parser() -> argparse.ArgumentParser:
    """Arguments of all commands.

    Each command names the function that runs it, ``MODULE:FUNCTION`` beside
    this module. It is given the other arguments by name, after the command's
    function of :mod:`.early` has looked at them.
    """
    parser = argparse.ArgumentParser(
        PROGRAM,
        description=ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        '--version', action='version', version=f'mmstepnet {__version__}'
    )
    commands = parser.add_subparsers(required=True)

    def add_command(
        name: str, description: str, run: str, check: Callable[[dict], None]
    ) -> argparse.ArgumentParser:
        """A command; the first line of its description is that of the list."""
        sentence = description.splitlines()[0].rstrip('.')
        command = commands.add_parser(
            name,
            help=sentence[0].lower() + sentence[1:],
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.set_defaults(run=run, check=check)
        return command

    stiffness = add_command(
        'stiffness', STIFFNESS, 'commands:run_stiffness', early.check_measuring
    )
    stiffness.add_argument('models', nargs='+', metavar='MODEL', help=KINDS)
    stiffness.add_argument(
        '--blocks',
        nargs='+',
        metavar='PATTERN',
        help='measure the blocks of these names alone, such as "layer3.*". '
        'Default: all',
    )
    gates = add_command(
        'gates', GATES, 'commands:run_gates', early.check_measuring
    )
    gates.add_argument('models', nargs=1, metavar='MODEL', help=KINDS)
    gates.add_argument(
        'folder',
        nargs='?',
        type=Path,
        metavar='FOLDER',
        help='the same as --images FOLDER',
    )
    for command in (stiffness, gates):
        add = command.add_argument
        add(
            '--images',
            type=Path,
            metavar='FOLDER',
            help='folder of pictures. Needed, but for a FUNCTION that returns '
            'its own batches. Default: these batches',
        )
        add(
            '--labels',
            action='store_true',
            help='also measure the accuracy: '
            'the folders of the pictures are the classes of the model. '
            'Default: it is not measured',
        )
        add(
            '--weights',
            type=Path,
            nargs='+',
            default=[],
            metavar='FILE',
            help='files of '
            'weights, one a model, or several of one model, as of its epochs. '
            'Default: those that the model was built with, random ones of a '
            'library',
        )
        add(
            '--steps',
            metavar='FILE',
            help='file of save_steps, whose attentions are put into the '
            'model. Default: the model as it is',
        )
        add(
            '--samples',
            type=_samples,
            metavar='N',
            help='pictures at most, '
            'evenly drawn, or "all". Default: 256, and all with --labels',
        )
    worth = add_command('worth', WORTH, 'worth:run_worth', early.check_worth)
    add = worth.add_argument
    add('models', nargs=1, metavar='MODEL', help=KINDS)
    add(
        '--images',
        type=Path,
        required=True,
        metavar='FOLDER',
        help='folder of pictures; the folders in it are the classes. Needed',
    )
    add(
        '--val',
        type=Path,
        metavar='FOLDER',
        help='folder of pictures to test on, of the same classes. Default: '
        'each fifth of the pictures is tested once',
    )
    add(
        '--weights',
        type=Path,
        nargs=1,
        default=[],
        metavar='FILE',
        help='file of weights. Default: those that the model was built with',
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
        help='pictures at most, evenly drawn, or "all". Default: %(default)s',
    )
    add(
        '--minutes',
        type=float,
        default=20.0,
        help='how long it may take. Default: %(default)s',
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
        help='train it on all pictures, and write its steps and its head. '
        'Default: nothing is kept',
    )
    add(
        '--force',
        action='store_true',
        help='go on where pictures show only differences above 15 points. '
        'Default: it is refused',
    )
    add(
        '--out',
        type=Path,
        default=Path('worth'),
        metavar='FOLDER',
        help='folder of what is written; called again, the command goes on. '
        'Default: %(default)s',
    )
    for command, batch_size in ((stiffness, 16), (gates, 16), (worth, 32)):
        add = command.add_argument
        add(
            '--pretrained',
            action='store_true',
            help="fetch the library's weights. Default: they are random",
        )
        add(
            '--batch-size',
            type=positive_int,
            default=batch_size,
            metavar='N',
            help='pictures at once. Default: %(default)s',
        )
        add(
            '--device',
            help='such as cpu or cuda:1. Default: a GPU where there is one',
        )
    report = add_command(
        'report', REPORT, 'commands:run_report', early.check_report
    )
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
            help='print an object a network, a line each. Default: tables',
        )
    for command in (stiffness, report):
        command.add_argument(
            '--reading',
            choices=READINGS,
            default='adaptive',
            help='what is printed and drawn: "adaptive" divides a change by '
            'the attention value, "unit" does not, "returned" is the change '
            'with the activation behind it. Default: %(default)s',
        )
        command.add_argument(
            '--out',
            type=Path,
            default=Path('stiffness'),
            metavar='FOLDER',
            help='folder of what is written. Default: %(default)s',
        )

    blocks = add_command(
        'blocks', BLOCKS, 'commands:run_blocks', early.check_blocks
    )
    blocks.add_argument('model', metavar='MODEL', help=KINDS)
    example = blocks.add_mutually_exclusive_group()
    example.add_argument(
        '--images',
        type=Path,
        metavar='FOLDER',
        help='folder of pictures, whose first one the model is given. '
        'Default: none is needed',
    )
    example.add_argument(
        '--size',
        type=positive_int,
        nargs='+',
        help='side of the pictures, or height and width. Default: what the '
        "model's transform makes of a picture of 224 pixels, or 224",
    )
    blocks.add_argument(
        '--trace',
        action='store_true',
        help='also print the pass: which module is given which tensor. '
        'Default: the blocks alone',
    )
    add_command('env', ENV, 'env:run_env', early.check_nothing)
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
    run, check = options.pop('run'), options.pop('check')
    try:
        check(options)
        resolve_name(f'{__package__}.{run}')(**options)
    except REFUSALS as error:
        print(f'mmstepnet: {in_one_line(error)}', file=sys.stderr)
        return 2
    return 0
