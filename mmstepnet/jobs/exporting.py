"""What ``tools/export_onnx.py`` does."""

from argparse import Namespace

import torch.nn as nn
from mmengine.model import BaseModel
from torch import Tensor

from mmstepnet.cli.wording import in_one_line
from mmstepnet.export import export_onnx

from .job import load_model

OPTIONS = {
    'dynamic_size=False': '--fixed-size',
    'size= and channels=': '--size',
}
"""What arguments of :func:`export_onnx` are called on the command line."""


def export(args: Namespace) -> None:
    """Export the config and the checkpoint of a command line."""
    _, _, model = load_model(args)
    part = model.get_submodule(args.part) if args.part else Raw(model)
    try:
        difference = export_onnx(
            part, args.out, args.size, dynamic_size=not args.fixed_size
        )
    except RuntimeError as error:
        raise SystemExit(refusal(model, args.part, error)) from error
    print(
        f'{args.out}: {args.out.stat().st_size / 2**20:.2f} MiB, differs '
        f'from PyTorch by {difference:.1e} of the largest value'
    )


def refusal(model: nn.Module, part: str, error: RuntimeError) -> str:
    """What a user of the tool can do about an export that failed.

    Args:
        model (nn.Module): The whole model.
        part (str): What of it was to be exported; ``''`` is all.
        error (RuntimeError): Of :func:`export_onnx`, in whose text arguments
            have their names in Python.
    """
    text = in_one_line(error)
    for argument, option in OPTIONS.items():
        text = text.replace(argument, option)
    if error.__cause__ and (why := in_one_line(error.__cause__)) not in text:
        text += f' ({why})'
    if hasattr(model, 'roi_head') and not part:
        return (
            f'a detector of two stages has no tensors before boxes are '
            f'decoded: give --part backbone ({text})'
        )
    parts = ', '.join(name for name, _ in model.named_children())
    return f'{text}; --part names what else could be exported: {parts}'


class Raw(nn.Module):
    """A model of OpenMMLab, called as ``torch.onnx`` calls one."""

    def __init__(self, model: BaseModel):
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> object:
        return self.model(images, mode='tensor')
