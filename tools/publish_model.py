"""Strip a checkpoint to what its users need, under a name with its hash.

    python tools/publish_model.py work_dirs/x/epoch_12.pth resnet50_stepnet

writes resnet50_stepnet-HASH.pth, weights and metadata, and the same as
resnet50_stepnet-HASH.safetensors. Each hash is the start of its file's
SHA-256.
"""

import argparse
from pathlib import Path

from mmstepnet.cli.job_options import check_files
from mmstepnet.cli.wording import refusals_in_one_line


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument('checkpoint', help='checkpoint file')
    parser.add_argument(
        'out', type=Path, help='where to, without hash and ending'
    )
    args = parser.parse_args()
    check_files(args, args.checkpoint)
    return args


def main() -> None:
    args = parse_args()
    # Only now PyTorch is imported: help and refusals are quick.
    with refusals_in_one_line():
        from mmstepnet.jobs.publishing import publish

        publish(args)


if __name__ == '__main__':
    main()
