r"""Test a trained network: how good it is on the test data of its config.

    python tools/test.py configs/digits/resnet20_stepnet_digits.py \
        weights/resnet20_stepnet_digits.safetensors

prints the metrics of the config.
"""

import argparse

from mmstepnet.cli.job_options import add_job_options, check_files


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_job_options(parser)
    parser.add_argument('checkpoint', help='checkpoint file or address')
    parser.add_argument(
        '--out',
        metavar='FILE',
        help='FILE.json gets the metrics, FILE.pkl the predictions. Default: '
        'the metrics are printed alone',
    )
    parser.add_argument(
        '--show-dir',
        metavar='DIR',
        help='draw what was found into the pictures and write them to DIR. '
        'Default: nothing is drawn',
    )
    args = parser.parse_args()
    if args.out and not args.out.endswith(('.json', '.pkl')):
        parser.error(f'--out must end in .json or .pkl, got {args.out!r}')
    check_files(args, args.checkpoint)
    return args


def main() -> None:
    args = parse_args()
    # Only now PyTorch is imported: help and refusals are quick.
    from mmstepnet.jobs.testing import test

    test(args)


if __name__ == '__main__':
    main()
