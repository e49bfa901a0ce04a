"""Draw what propagation by similarity does, on points of known geometry.

Section 3 of "Towards understanding how attention mechanism works in deep
learning", each panel beside its closed form: propagation.png has the
attention limit operator on a circle (Theorems 2 and 3), the rate that a
scaled metric gives, clustering and the spectrum that foretells it, and
nearest points (Theorem 5); heat_equation.png Theorem 4 on a 3-torus;
pseudo_metrics.png Examples 1 to 3 and Theorem 6. All run in float64, through
the same functions as the attention modules.
"""

import argparse
from pathlib import Path

from .pictures import PICTURES, draw


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        'pictures', nargs='*', metavar='NAME',
        help=f'which, of {", ".join(PICTURES)}. Default: all')
    parser.add_argument(
        '--out', type=Path, default=Path(), help='folder. Default: this one')
    args = parser.parse_args()
    for name in args.pictures or PICTURES:
        if name not in PICTURES:
            parser.error(f'no picture {name!r}, there are '
                         f'{", ".join(PICTURES)}')
        path = args.out / f'{name}.png'
        draw(path, PICTURES[name])
        print(f'picture: {path}')


if __name__ == '__main__':
    main()
