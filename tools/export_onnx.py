"""Write a trained model as an ONNX file, and compare it with PyTorch.

    python tools/export_onnx.py CONFIG CHECKPOINT OUT.onnx --part backbone

Adaptors and norms are folded. Of a classifier the file gives the scores before
softmax, of a detector the tensors of its heads before boxes are decoded; those
of two stages have no such form, and --part exports their backbone. Images go
in as the model's data preprocessor makes them, any number of any size.
"""

import argparse
from pathlib import Path

import torch.nn as nn
from mmengine.model import BaseModel
from torch import Tensor

from mmstepnet.checks import positive_int
from mmstepnet.export import export_onnx
from mmstepnet.jobs.job import add_config_options, load_model


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
        help='for a model of one image size, such as most ViTs',
    )
    return parser.parse_args()


class Raw(nn.Module):
    """A model of OpenMMLab, called as ``torch.onnx`` calls one."""

    def __init__(self, model: BaseModel):
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> object:
        return self.model(images, mode='tensor')


def main() -> None:
    args = parse_args()
    _, _, model = load_model(args)
    part = model.get_submodule(args.part) if args.part else Raw(model)
    try:
        difference = export_onnx(
            part, args.out, args.size, dynamic_size=not args.fixed_size
        )
    except RuntimeError as error:
        parts = ', '.join(name for name, _ in model.named_children())
        raise SystemExit(
            f'{error}.\n{error.__cause__ or ""}\n--part names '
            f'what else could be exported: {parts}'
        ) from error
    print(
        f'{args.out}: {args.out.stat().st_size / 2**20:.2f} MiB, differs '
        f'from PyTorch by {difference:.1e} of the largest value'
    )


if __name__ == '__main__':
    main()
