"""The papers' tables: list them, run their rows, set ours beside them.

    python -m projects.reproduction.paper list
    python -m projects.reproduction.paper run 1 ResNet StepNet --seeds 5
    python -m projects.reproduction.paper table 1
    python -m projects.reproduction.paper report

The tables stand in the configs' metafiles.
"""

import argparse
import sys
from pathlib import Path

from mmstepnet.checks import positive_int
from projects.reproduction.rows import RESULTS, read_rows
from projects.reproduction.tables import ROOT, read_tables, select_cells

PAGE = Path(__file__).with_name('RESULTS.md')


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest='command', required=True)
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument(
        '--results',
        type=Path,
        default=RESULTS,
        help='folder of our rows, one JSON file for each config and seed. '
        'Default: projects/reproduction/results',
    )
    chosen = argparse.ArgumentParser(add_help=False, parents=[shared])
    chosen.add_argument('table', help='such as 1 or digits, see list')
    chosen.add_argument(
        'rows',
        nargs='*',
        metavar='ROW',
        help='labels of rows, or names of configs. Default: all',
    )
    commands.add_parser(
        'list', parents=[shared], help='every row of every table'
    )
    commands.add_parser(
        'table',
        parents=[chosen],
        help="the paper's figures beside ours, parameters and operations",
    )
    commands.add_parser(
        'report',
        parents=[shared],
        help='write verdicts of all rows into RESULTS.md, intervals and '
        'tables into results/*.tsv',
    )
    run = commands.add_parser(
        'run',
        parents=[chosen],
        help='train and test rows; what is done is skipped, what was '
        'interrupted goes on',
    )
    run.add_argument(
        '--seeds',
        type=seed_range,
        default=range(5),
        metavar='N or FIRST-LAST',
        help='run seeds 0 to N-1, or FIRST to LAST, such as 3-27. Default: '
        "5, the paper's number",
    )
    run.add_argument(
        '--work-dir',
        type=Path,
        default=Path('work_dirs/paper'),
        help='gets CONFIG/seed_N/ with logs and checkpoints. '
        'Default: work_dirs/paper',
    )
    run.add_argument(
        '--gpus',
        type=positive_int,
        default=1,
        metavar='N',
        help='GPUs of this machine that share the images of a step. '
        'Default: 1',
    )
    return parser.parse_args()


def seed_range(text: str) -> range:
    """Seeds of ``'5'``, which are 0 to 4, or of ``'3-27'``."""
    first, dash, last = text.partition('-')
    seeds = range(int(first), int(last) + 1) if dash else range(int(first))
    if not seeds or min(seeds) < 0:
        raise ValueError(f'there is no seed in {text}')
    return seeds


def main() -> None:
    args = parse_args()
    tables = read_tables(ROOT)
    if args.command == 'list':
        for table, cells in tables.items():
            for cell in cells:
                seeds = len(read_rows(cell.name, args.results))
                print(
                    table,
                    cell.row,
                    cell.column,
                    cell.name or '–',
                    f'{seeds} seeds',
                    sep=' | ',
                )
        return
    # These import torch, which a list need not wait for.
    from projects.reproduction import report

    if args.command == 'report':
        report.write_report(tables, PAGE, args.results)
        return
    if args.table not in tables:
        sys.exit(
            f'error: there is no table {args.table!r}; expected one of '
            f'{", ".join(tables)}'
        )
    try:
        cells = select_cells(tables[args.table], args.rows)
    except ValueError as error:
        sys.exit(f'error: {error}')
    if args.command == 'table':
        print(report.table_text(report.read_columns(cells, args.results)))
        return
    from projects.reproduction.runner import run

    for seed in args.seeds:
        for cell in cells:
            if cell.config:
                print(f'{cell.name}, seed {seed}', flush=True)
                run(cell, seed, args.work_dir, args.results, args.gpus)


if __name__ == '__main__':
    main()
