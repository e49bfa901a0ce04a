"""Train a network, as a config of OpenMMLab describes it, ours or a host's.

    python tools/train.py configs/digits/resnet20_stepnet_digits.py

writes logs and checkpoints into work_dirs/resnet20_stepnet_digits. The same
command with --resume goes on where a training was stopped.
"""

import argparse

from mmstepnet.cli.job_options import add_job_options, check_files


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_job_options(parser)
    parser.add_argument(
        '--amp',
        action='store_true',
        help='automatic mixed precision. Default: as the config has it',
    )
    parser.add_argument(
        '--auto-scale-lr',
        action='store_true',
        help="scale the learning rate by this job's batch size over "
        'auto_scale_lr.base_batch_size of the config. Default: as it has it',
    )
    parser.add_argument(
        '--resume',
        nargs='?',
        const='auto',
        metavar='CHECKPOINT',
        help='go on from a checkpoint; without a value from the last one of '
        "the job, or from the config's load_from where there is none. "
        'Default: begin anew',
    )
    args = parser.parse_args()
    check_files(args, None if args.resume == 'auto' else args.resume)
    return args


def main() -> None:
    args = parse_args()
    # Only now PyTorch is imported: help and refusals are quick.
    from mmstepnet.jobs.training import train

    train(args)


if __name__ == '__main__':
    main()
