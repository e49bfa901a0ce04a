"""Compose a small data set for detection, of handwritten digits.

    python tools/dataset_converters/compose_digits.py

writes PNG pictures and COCO annotations into data/digits_detection, where the
configs of the digits look for them.
"""

import argparse
from pathlib import Path

from mmstepnet.checks import positive_int
from mmstepnet.cli.wording import refusals_in_one_line


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        '--out',
        type=Path,
        default=Path('data/digits_detection'),
        metavar='FOLDER',
        help='folder that the data set is or will be in. Default: %(default)s',
    )
    for name, count, what in (
        ('--train', 1000, 'training pictures'),
        ('--val', 200, 'validation pictures'),
    ):
        parser.add_argument(
            name,
            type=positive_int,
            default=count,
            metavar='N',
            help=f'{what}. Default: %(default)s',
        )
    parser.add_argument(
        '--seed',
        type=int,
        default=0,
        help='equal seeds and settings give equal data. Default: %(default)s',
    )
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    # Only now what draws is imported: help is quick.
    with refusals_in_one_line():
        from mmstepnet.datasets.digits_files import write_digits

        write_digits(args)


if __name__ == '__main__':
    main()
