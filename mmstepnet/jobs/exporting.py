"""What ``tools/export_onnx.py`` does."""

from argparse import Namespace

import torch.nn as nn
from mmengine.model import BaseModel
from torch import Tensor

from mmstepnet.cli.wording import in_one_line
from mmstepnet.export import export_onnx

from .job import load_model


def export(args: Namespace) -> None:
    """Export the config and the checkpoint of a command line."""
    _, _, model = load_model(args)
    part = model.get_submodule(args.part) if args.part else Raw(model)
    try:
        difference = export_onnx(
            part, args.out, args.size, dynamic_size=not args.fixed_size
        )
    except RuntimeError as error:
        parts = ', '.join(name for name, _ in model.named_children())
        cause = f' ({in_one_line(error.__cause__)})' if error.__cause__ else ''
        raise SystemExit(
            f'{error}{cause}; --part names what else could be exported: '
            f'{parts}'
        ) from error
    print(
        f'{args.out}: {args.out.stat().st_size / 2**20:.2f} MiB, differs '
        f'from PyTorch by {difference:.1e} of the largest value'
    )


class Raw(nn.Module):
    """A model of OpenMMLab, called as ``torch.onnx`` calls one."""

    def __init__(self, model: BaseModel):
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> object:
        return self.model(images, mode='tensor')
