r"""Write a trained model as an ONNX file, and compare it with PyTorch.

    python tools/export_onnx.py configs/digits/resnet20_stepnet_digits.py \
        weights/resnet20_stepnet_digits.safetensors model.onnx --size 32 32

Adaptors and norms are folded. Of a classifier the file gives the scores before
softmax, of a detector the tensors of its heads before boxes are decoded; those
of two stages have no such form, and --part exports their backbone. Images go
in as the model's data preprocessor makes them, any number of any size.
"""

import argparse
from pathlib import Path

from mmstepnet.checks import positive_int
from mmstepnet.cli.job_options import add_config_options, check_files
from mmstepnet.cli.wording import refusals_in_one_line


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_config_options(parser)
    parser.add_argument('checkpoint', help='checkpoint file')
    parser.add_argument('out', type=Path, help='where to, OUT.onnx')
    parser.add_argument(
        '--part',
        default='',
        metavar='NAME',
        help='export a part of the model, such as backbone. Default: all',
    )
    parser.add_argument(
        '--size',
        nargs=2,
        type=positive_int,
        default=(224, 224),
        metavar=('H', 'W'),
        help='of images that the model works on. Default: 224 224',
    )
    parser.add_argument(
        '--fixed-size',
        action='store_true',
        help='for a model of one image size, such as most ViTs. Default: '
        'the file takes images of any size',
    )
    args = parser.parse_args()
    check_files(args, args.checkpoint)
    return args


def main() -> None:
    args = parse_args()
    # Only now PyTorch is imported: help and refusals are quick.
    with refusals_in_one_line():
        from mmstepnet.jobs.exporting import export

        export(args)


if __name__ == '__main__':
    main()
