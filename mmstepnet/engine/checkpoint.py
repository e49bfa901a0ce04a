"""Reading checkpoints with errors that a user can act on."""

import logging
import os.path as osp
from pathlib import Path
from zipfile import ZipFile, is_zipfile

import torch
import torch.nn as nn
from mmengine.logging import print_log
from mmengine.model import is_model_wrapper
from torch import Tensor

from .safe_load import UnsafeCheckpointError, load_data


def check_checkpoint(path: str, trusted: bool = False) -> dict:
    """Refuse what is not a whole checkpoint, before a job is built for it.

    Args:
        path (str): A file written by mmengine or ``torch.save``.
        trusted (bool): Whether to run what the file asks for. Defaults to
            False: it is read as data, see :func:`load_data`.

    Returns:
        dict: What it holds.

    Raises:
        FileNotFoundError: There is no such file.
        UnsafeCheckpointError: It is more than data.
        ValueError: It is cut off, or is not a checkpoint at all.
    """
    if not osp.isfile(path):
        raise FileNotFoundError(f'checkpoint {path!r} does not exist')
    try:
        if trusted:
            checkpoint = torch.load(
                path, map_location='cpu', weights_only=False)
        else:
            checkpoint = load_data(path)
        _check_sums(path)
    except UnsafeCheckpointError:
        raise
    except Exception as error:  # whatever a reader makes of damaged bytes
        raise ValueError(
            f'{path!r} is not a whole PyTorch checkpoint ({error}); it was '
            'cut off or damaged while it was written or copied, or is another '
            'kind of file: take an earlier checkpoint') from error
    if not isinstance(checkpoint, dict) or not isinstance(
            checkpoint.get('state_dict', {}), dict):
        raise ValueError(f'{path!r} holds a {type(checkpoint).__name__}, not '
                         'a checkpoint with a state_dict of weights')
    return checkpoint


def _check_sums(path: str) -> None:
    """Compare the parts of a file with their checksums; torch.load does not.

    Raises:
        ValueError: One differs.
    """
    if is_zipfile(path):
        with ZipFile(path) as file:
            damaged = file.testzip()
        if damaged is not None:
            raise ValueError(f'the checksum of {damaged} differs')


def find_resumable(work_dir: str, trusted: bool = False) -> str | None:
    """Find the newest whole checkpoint that training can go on from.

    Not the one that ``last_checkpoint`` names: a job that was killed while it
    saved may have left half of it.

    Args:
        work_dir (str): Folder of a job.
        trusted (bool): See :func:`check_checkpoint`. Defaults to False.

    Returns:
        str, optional: Its path; None where the folder holds no checkpoint.

    Raises:
        UnsafeCheckpointError: The newest is more than data.
        ValueError: There are checkpoints, none of them whole.
    """
    paths = sorted(
        Path(work_dir).glob('*.pth'),
        key=lambda path: path.stat().st_mtime_ns,
        reverse=True)
    broken = []
    for path in map(str, paths):
        try:
            checkpoint = check_checkpoint(path, trusted)
        except UnsafeCheckpointError:
            raise
        except ValueError as error:
            broken.append(str(error))
            continue
        # Those of the best epochs, and published ones, hold weights alone.
        if 'optimizer' in checkpoint:
            for message in broken:
                print_log(message, logger='current', level=logging.WARNING)
            return path
    if broken:
        raise ValueError(f'no checkpoint in {work_dir!r} can be resumed: '
                         f'{broken[0]}')
    return None


def check_weights(model: nn.Module,
                  path: str,
                  trusted: bool = False) -> None:
    """Refuse a checkpoint of another model.

    mmengine only warns about names that do not match, and would go on to
    evaluate random weights, or NaN.

    Args:
        model (nn.Module): The model that is to be evaluated, or its wrapper.
        path (str): Checkpoint, see :func:`check_checkpoint`.
        trusted (bool): See there. Defaults to False.

    Raises:
        ValueError: Names or shapes differ from the model's, or weights are
            not finite.
    """
    if is_model_wrapper(model):
        model = model.module
    checkpoint = check_checkpoint(path, trusted)
    found = {
        name.removeprefix('module.'): value
        for name, value in checkpoint.get('state_dict', checkpoint).items()
        if isinstance(value, Tensor)
    }
    wanted = model.state_dict()
    differences = [
        f'{what} {len(names)} ({", ".join(sorted(names)[:3])}, ...)'
        for what, names in (
            ('missing', wanted.keys() - found.keys()),
            ('unexpected', found.keys() - wanted.keys()),
            ('of another shape', [
                name for name in wanted.keys() & found.keys()
                if wanted[name].shape != found[name].shape
            ])) if names
    ]
    if differences:
        raise ValueError(
            f'{path!r} does not fit the model of this config; is it the '
            f'checkpoint of another one? Tensors: {"; ".join(differences)}')
    if broken := not_finite(found, model):
        raise ValueError(
            f'{path!r} holds NaN or infinity in {len(broken)} tensors '
            f'({", ".join(broken[:3])}, ...): its training has diverged; '
            'take an earlier checkpoint')


def not_finite(weights: dict[str, Tensor], model: nn.Module) -> list[str]:
    """Names of tensors that hold NaN, or of parameters that are infinite.

    Buffers may hold infinity: masks do.

    Args:
        weights (dict[str, Tensor]): Parameters and buffers of the model.
        model (nn.Module): The model, or its wrapper.
    """
    if is_model_wrapper(model):
        model = model.module
    parameters = dict(model.named_parameters())
    return [
        name for name, value in weights.items() if value.is_floating_point()
        and not (value.isfinite() if name in parameters
                 else ~value.isnan()).all()
    ]
