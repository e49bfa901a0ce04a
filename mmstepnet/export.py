"""ONNX files of networks, compared with PyTorch."""

import copy
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
from torch import Tensor

from .checks import check_installed
from .files import write_whole
from .steps import ResidualStep
from .steps.fold import fold
from .torch_version import onnx_arguments
from .tracing import tensors

NEEDED = ('onnx', 'onnxruntime', 'onnxscript')

TOLERANCE = 1e-3
"""Largest difference to PyTorch, relative to an output's largest value."""


def export_onnx(
    model: nn.Module,
    path: str | Path,
    size: Sequence[int] = (224, 224),
    *,
    channels: int = 3,
    dynamic_size: bool = True,
) -> float:
    """Write a model as an ONNX file, and compare it with PyTorch.

    The file takes ``images``, (N, C, H, W) in float32 and prepared as the
    model was trained with, with any N, and gives every tensor that the model
    returns, as ``output_0`` and so on. onnxruntime runs it on images of
    ``size``, and on others of another number and size where these are free;
    only then it gets its name. This takes a few times as long as PyTorch's
    export alone, so a line on stderr comes before each part.

    Args:
        model (nn.Module): A model in float32 on the CPU, called with images
            alone. It is left as it was; residual steps in it are folded in
            the file.
        path (str | Path): Where to.
        size (Sequence[int]): Height and width of images that it works on.
            Defaults to (224, 224).
        channels (int): Channels of an image. Defaults to 3.
        dynamic_size (bool): Whether height and width are free; not of a
            model of one size, such as most ViTs. Defaults to True.

    Returns:
        float: Largest difference to PyTorch, relative to the largest value
        of an output.

    Raises:
        ImportError: onnx, onnxruntime or onnxscript is missing.
        RuntimeError: The model does not run on images of the size, PyTorch
            cannot export it, or the file computes something else. There is no
            new file then.

    Example:
        >>> from torchvision.models import resnet18
        >>> from mmstepnet import insert_steps
        >>> from mmstepnet.export import export_onnx
        >>> model = resnet18()
        >>> blocks = insert_steps(model)
        >>> export_onnx(model, 'resnet18.onnx') < 1e-3  # doctest: +SKIP
        True
    """
    check_installed(
        'an ONNX export', *NEEDED, install="'.[onnx]' in a checkout"
    )
    has_steps = any(isinstance(m, ResidualStep) for m in model.modules())
    more = 32 if dynamic_size else 0
    trials = [
        torch.rand(2, channels, *size),
        torch.rand(3, channels, *(side + more for side in size)),
    ]
    sizes = ' and '.join(
        f'{len(images)} of {images.shape[2]} x {images.shape[3]}'
        for images in trials
    )
    plain = _Flat(copy.deepcopy(model))
    _say(f'1 of 3: PyTorch runs the model on images, {sizes}')
    try:
        with torch.no_grad():
            wanted = [plain(trials[0])]
    except Exception as error:
        shape = ' x '.join(map(str, trials[0].shape[1:]))
        advice = (
            _advice_on_dtype(model)
            or 'give size= and channels= of images that it takes'
        )
        raise RuntimeError(
            f'the model does not run on images of {shape} '
            f'({type(error).__name__}: {error}); {advice}'
        ) from error
    folded = _Flat(
        fold(model, trials[0]) if has_steps else copy.deepcopy(model)
    )
    axes = ['batch', None] + (['height', 'width'] if dynamic_size else [])
    try:
        with torch.no_grad():
            wanted.append(plain(trials[1]))
            _say('2 of 3: PyTorch exports the model')
            content = _export(folded, trials[0], len(wanted[0]), axes)
        _say('3 of 3: onnxruntime runs the file on the same images')
        found = _run(content, trials)
    except Exception as error:
        advice = _advice_on_dtype(model)
        if not advice and dynamic_size:
            advice = 'a model of one image size needs dynamic_size=False'
        raise RuntimeError(
            'PyTorch cannot export the model with free '
            f'{", ".join(filter(None, axes))}{advice and f"; {advice}"}'
        ) from error
    # NumPy's maximum keeps a NaN.
    difference = float(
        np.max(
            [
                np.abs(a - b.numpy()).max() / max(b.abs().max(), 1e-12)
                if a.shape == b.shape
                else np.inf
                for outs, expected in zip(found, wanted)
                for a, b in zip(outs, expected)
            ]
        )
    )
    if not difference <= TOLERANCE:
        raise RuntimeError(
            f'{path} was not written: what onnxruntime computes differs from '
            f'PyTorch by {difference:.2g} of the largest value, expected at '
            f'most {TOLERANCE:.2g}'
        )
    write_whole(path, content)
    return difference


def _advice_on_dtype(model: nn.Module) -> str:
    """What to do where weights are not in float32, else nothing."""
    others = {
        str(p.dtype) for p in model.parameters() if p.is_floating_point()
    } - {'torch.float32'}
    if not others:
        return ''
    return (
        f'its weights are in {", ".join(sorted(others))} and the images in '
        f'float32, so call model.float() before'
    )


def _say(text: str) -> None:
    print(f'export_onnx: {text}', file=sys.stderr, flush=True)


class _Flat(nn.Module):
    """A model in eval mode that returns all its tensors in one tuple."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model
        self.train(False)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        return tuple(tensors(self.model(images)))


def _export(
    model: nn.Module, images: Tensor, outputs: int, axes: Sequence[str | None]
) -> bytes:
    names = [f'output_{i}' for i in range(outputs)]
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        # Of PyTorch's own use of a class of its own.
        warnings.filterwarnings('ignore', '.*LeafSpec', FutureWarning)
        path = Path(folder) / 'model.onnx'
        torch.onnx.export(
            model,
            (images,),
            str(path),
            input_names=['images'],
            output_names=names,
            **onnx_arguments(axes),
        )
        return path.read_bytes()


def _run(content: bytes, trials: list[Tensor]) -> list[list[np.ndarray]]:
    import onnxruntime

    session = onnxruntime.InferenceSession(
        content, providers=['CPUExecutionProvider']
    )
    return [session.run(None, {'images': images.numpy()}) for images in trials]
