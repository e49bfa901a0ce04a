"""Reading checkpoints with errors that a user can act on."""

import os.path as osp
from pickle import UnpicklingError

import torch
import torch.nn as nn
from mmengine.model import is_model_wrapper
from torch import Tensor


def check_checkpoint(path: str) -> dict:
    """Refuse what is not a whole checkpoint, before a job is built for it.

    Args:
        path (str): A file written by mmengine or ``torch.save``.

    Returns:
        dict: What it holds.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is cut off, or is not a checkpoint at all.
    """
    if not osp.isfile(path):
        raise FileNotFoundError(f'checkpoint {path!r} does not exist')
    try:
        checkpoint = torch.load(path, map_location='cpu', weights_only=False)
    except (RuntimeError, EOFError, UnpicklingError, KeyError,
            ValueError) as error:
        raise ValueError(
            f'{path!r} is not a whole PyTorch checkpoint ({error}); it was '
            'cut off while it was written or copied, or is another kind of '
            'file: take an earlier checkpoint') from error
    if not isinstance(checkpoint, dict):
        raise ValueError(f'{path!r} holds a {type(checkpoint).__name__}, not '
                         'a checkpoint with a state_dict')
    return checkpoint


def check_weights(model: nn.Module, path: str) -> None:
    """Refuse a checkpoint of another model.

    mmengine only warns about names that do not match, and would go on to
    evaluate random weights.

    Args:
        model (nn.Module): The model that is to be evaluated, or its wrapper.
        path (str): Checkpoint, see :func:`check_checkpoint`.

    Raises:
        ValueError: Names or shapes differ from the model's.
    """
    if is_model_wrapper(model):
        model = model.module
    checkpoint = check_checkpoint(path)
    found = {
        name.removeprefix('module.'): value.shape
        for name, value in checkpoint.get('state_dict', checkpoint).items()
        if isinstance(value, Tensor)
    }
    wanted = {name: v.shape for name, v in model.state_dict().items()}
    differences = [
        f'{what} {len(names)} ({", ".join(sorted(names)[:3])}, ...)'
        for what, names in (
            ('missing', wanted.keys() - found.keys()),
            ('unexpected', found.keys() - wanted.keys()),
            ('of another shape', [
                name for name in wanted.keys() & found.keys()
                if wanted[name] != found[name]
            ])) if names
    ]
    if differences:
        raise ValueError(
            f'{path!r} does not fit the model of this config; is it the '
            f'checkpoint of another one? Tensors: {"; ".join(differences)}')
