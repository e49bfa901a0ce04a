"""Compare the stiffness of runs, with the accuracies that their logs have.

``python -m mmstepnet report`` takes accuracies from the recordings alone. A
run is a work directory with recordings of StiffnessHook, of which the one
written last counts and all show the training, or one recording.
"""

import argparse

from mmstepnet.figures import save_report
from mmstepnet.stiffness import (
    DEFAULT_READING,
    READINGS,
    find_recordings,
    read_trainings,
)

from .measured_runs import load_runs


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        'runs', nargs='+', metavar='RUN', help='work directory or .npz file')
    parser.add_argument(
        '--out', metavar='DIR', default='stiffness_report',
        help='where the page and the figures go. Default: ./stiffness_report')
    parser.add_argument(
        '--labels', nargs='+', metavar='NAME',
        help='a name for each run; runs of the same name are seeds of one '
        'model. Default: the names of the directories')
    parser.add_argument(
        '--reading', choices=READINGS, default=DEFAULT_READING,
        help=f'reading of NSI. Default: {DEFAULT_READING}')
    parser.add_argument(
        '--metric', metavar='KEY',
        help="accuracy's key in the logs, such as single-label/f1-score. "
        'Default: top-1 accuracy, else mAP, else mIoU')
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    try:
        runs = load_runs(args.runs, args.labels, args.reading, args.metric)
        page = save_report(runs, args.out, read_trainings(
            [file for path in args.runs for file in find_recordings(path)],
            args.reading))
    except (FileNotFoundError, ValueError) as error:
        raise SystemExit(f'stiffness_report.py: {error}') from error
    print(f'{len(runs)} runs: {page.resolve()}')


if __name__ == '__main__':
    main()
