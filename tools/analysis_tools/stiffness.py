r"""Measure how stiff a trained network is, with any config of OpenMMLab.

    python tools/analysis_tools/stiffness.py \
        configs/digits/resnet20_stepnet_digits.py \
        weights/resnet20_stepnet_digits.safetensors

prints TNS and the stiffest blocks, and writes stiffness_SPLIT_CHECKPOINT.npz
and its figures. Where the whole split is measured and the config has an
evaluator for it, the metrics are computed in the same pass and kept.
"""

import argparse

from mmstepnet.checks import positive_int
from mmstepnet.cli.job_options import add_config_options, check_files
from mmstepnet.cli.wording import refusals_in_one_line

SPLITS = ('train', 'val', 'test')


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_config_options(parser)
    parser.add_argument('checkpoint', help='checkpoint file')
    parser.add_argument(
        '--split',
        choices=SPLITS,
        default='test',
        help='which data loader of the config is read; the train loader with '
        'its augmentation, but every sample once and in order. '
        'Default: test',
    )
    parser.add_argument(
        '--max-samples',
        type=positive_int,
        metavar='N',
        help='measure N samples, evenly taken from the data set. Default: all',
    )
    parser.add_argument(
        '--blocks',
        nargs='+',
        metavar='PATTERN',
        help="names of the residual blocks, such as 'layer3.*', for a model "
        'whose blocks are not known. Default: all that are',
    )
    parser.add_argument(
        '--out',
        metavar='DIR',
        help="where files go. Default: stiffness/ in the config's work_dir, "
        'else in ./work_dirs/NAME_OF_THE_CONFIG',
    )
    parser.add_argument(
        '--device', help='such as cpu or cuda:1. Default: a GPU if there is'
    )
    args = parser.parse_args()
    check_files(args, args.checkpoint)
    return args


def main() -> None:
    args = parse_args()
    # Only now PyTorch is imported: help and refusals are quick.
    with refusals_in_one_line():
        from mmstepnet.jobs.measuring import measure

        measure(args)


if __name__ == '__main__':
    main()
