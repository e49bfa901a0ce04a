"""The paper's tables: list them, run their rows, set ours beside them.

    python -m projects.reproduction.paper list
    python -m projects.reproduction.paper run 1 ResNet StepNet --seeds 5
    python -m projects.reproduction.paper table 1
    python -m projects.reproduction.paper plot 1
    python -m projects.reproduction.paper report

Tables and the paper's figures stand in the configs' metafiles.
"""

import argparse
import signal
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import track

from mmstepnet.checks import positive_int
from projects.reproduction import (
    list_sheet,
    read_tables,
    select_cells,
    table_sheets,
)

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest='command', required=True)
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument(
        '--results', type=Path, default=HERE / 'results',
        help='folder of our results, one JSON file for each config and seed. '
        'Default: projects/reproduction/results')
    shown = argparse.ArgumentParser(add_help=False, parents=[shared])
    shown.add_argument(
        '--markdown', action='store_true', help='write Markdown')
    chosen = argparse.ArgumentParser(add_help=False)
    chosen.add_argument('table', help='such as 1 or digits, see list')
    chosen.add_argument(
        'rows', nargs='*', metavar='ROW',
        help='labels of rows, or names of configs. Default: all')

    commands.add_parser(
        'list', parents=[shown], help='every row of every table')
    commands.add_parser(
        'table', parents=[chosen, shown],
        help="the paper's figures beside ours, parameters and FLOPs")
    plot = commands.add_parser(
        'plot', parents=[chosen, shared],
        help='pictures of our results: curves over the epochs and violins '
        'over the seeds')
    plot.add_argument(
        '--out', type=Path, default=Path('work_dirs/figures'), metavar='DIR',
        help='gets the PNG files. Default: work_dirs/figures')
    report = commands.add_parser(
        'report', parents=[shared],
        help='all tables that have results, figures, verdicts on planned '
        'claims and intervals for the others')
    report.add_argument(
        '--out', type=Path, default=HERE / 'RESULTS.md', metavar='FILE.md',
        help='figures go to docs/results/ beside it. Default: '
        'projects/reproduction/RESULTS.md')
    run = commands.add_parser(
        'run', parents=[chosen, shared],
        help='train and test rows; what is done is skipped, what was '
        'interrupted goes on')
    run.add_argument(
        '--seeds', type=seed_range, default=range(5),
        metavar='N or FIRST-LAST',
        help='run seeds 0 to N-1, or FIRST to LAST, such as 3-27. Default: '
        "5, the paper's number")
    run.add_argument(
        '--work-dir', type=Path, default=Path('work_dirs/paper'),
        help='gets CONFIG/seed_N/ with logs and checkpoints. '
        'Default: work_dirs/paper')
    run.add_argument(
        '--launcher', choices=['none', 'pytorch', 'slurm'], default='none')
    run.add_argument(
        '--gpus', type=positive_int, default=1, metavar='N',
        help='processes of one job, for the launchers pytorch and slurm; '
        'tools/slurm_run.sh names the other variables of slurm. Default: 1')
    run.add_argument('--partition', help='of slurm')
    run.add_argument(
        '--dry-run', action='store_true',
        help='print the commands and run nothing')
    run.add_argument(
        '--cfg-options', nargs='+', default=[], metavar='KEY=VALUE',
        help='settings that override every config, see tools/train.py; they '
        'are noted in the results')
    return parser.parse_args()


def seed_range(text: str) -> range:
    """Seeds of ``'5'``, which are 0 to 4, or of ``'3-27'``."""
    first, dash, last = text.partition('-')
    if not (first.isdigit() and (last.isdigit() or not dash)):
        raise argparse.ArgumentTypeError(
            f'must be a number of seeds such as 5, or the first and the last '
            f'such as 3-27, got {text}')
    seeds = range(int(first), int(last) + 1) if dash else range(int(first))
    if not seeds:
        raise argparse.ArgumentTypeError(f'there is no seed in {text}')
    return seeds


def stop(signum: int, frame: object) -> None:
    sys.exit(128 + signum)


def run(args: argparse.Namespace) -> None:
    cells = select_cells(read_tables(ROOT), args.table, args.rows)
    # Imports torch, which a mistyped row need not wait for.
    from projects.reproduction.job_queue import run_cells
    from projects.reproduction.launch import LaunchSettings
    signal.signal(signal.SIGTERM, stop)
    launch = LaunchSettings(
        root=ROOT, work_dir=args.work_dir, results=args.results,
        cfg_options=tuple(args.cfg_options), launcher=args.launcher,
        gpus=args.gpus, partition=args.partition)
    left = run_cells(
        cells, args.seeds, launch, dry_run=args.dry_run,
        say=lambda line: print(line, flush=True))
    if left and not args.dry_run:
        print(f'{len(left)} runs are under way in other processes')


def show(args: argparse.Namespace) -> None:
    tables = read_tables(ROOT)
    if args.command == 'list':
        sheets = [list_sheet(tables, args.results)]
    else:
        cells = select_cells(tables, args.table, args.rows)
        from projects.reproduction.complexity import measure_complexity
        paths = dict.fromkeys(str(c.config) for c in cells if c.config)
        progress = Console(stderr=True)
        sizes = {
            path: measure_complexity(path)
            for path in track(paths, 'Counting', console=progress,
                              transient=True)
        }
        sheets = table_sheets(cells, args.results, sizes.__getitem__)
    # A file or pipe has no width to keep to.
    console = Console(width=None if sys.stdout.isatty() else 200)
    for sheet in sheets:
        if args.markdown:
            print(sheet.to_markdown())
        else:
            sheet.print(console)


def plot(args: argparse.Namespace) -> None:
    cells = select_cells(read_tables(ROOT), args.table, args.rows)
    # Imports matplotlib, which a mistyped row need not wait for.
    from projects.reproduction.plots import save_plots
    for path in save_plots(cells, args.results, args.out):
        print(path)


def report(args: argparse.Namespace) -> None:
    tables = read_tables(ROOT)
    from projects.reproduction.complexity import Complexity, measure_complexity
    from projects.reproduction.results_document import write_report

    def measure(config: str) -> Complexity:
        print(f'counting {Path(config).stem}', file=sys.stderr)
        return measure_complexity(config)

    for path in write_report(tables, args.results, args.out, measure):
        print(path)


def main() -> None:
    args = parse_args()
    commands = dict(run=run, plot=plot, list=show, table=show,
                    report=report)
    try:
        commands[args.command](args)
    except (ValueError, FileNotFoundError, RuntimeError) as error:
        sys.exit(f'error: {error}')


if __name__ == '__main__':
    main()
