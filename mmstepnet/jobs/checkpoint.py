"""Checkpoints, each opened once, with errors that a user can act on."""

import logging
import os.path as osp
import re
from collections import OrderedDict
from pathlib import Path

import torch
import torch.nn as nn
from mmengine.logging import print_log
from mmengine.runner import CheckpointLoader
from torch import Tensor

from mmstepnet.steps.finding import unwrap

from .safe_load import UnsafeCheckpointError, load_file, peek


def read_checkpoint(path: str, trusted: bool = False) -> dict:
    """Read a checkpoint; refuse what is not a whole one.

    Args:
        path (str): A file written by mmengine, ``torch.save`` or
            safetensors, or an address that mmengine reads, which is fetched.
        trusted (bool): Whether to run what the file asks for. Defaults to
            False: it is read as data, see :func:`load_file`.

    Returns:
        dict: What it holds, with ``state_dict`` and ``meta``, also where
        the file is only a dict of weights.

    Raises:
        FileNotFoundError: There is no such file.
        UnsafeCheckpointError: It is more than data.
        ValueError: It is cut off, or is not a checkpoint at all.
    """
    path = osp.expanduser(path)
    if '://' not in path and not osp.isfile(path):
        raise FileNotFoundError(f'checkpoint {path!r} does not exist')
    try:
        if '://' in path:
            content = CheckpointLoader.load_checkpoint(path, 'cpu')
        else:
            content = load_file(path, trusted=trusted)
    except UnsafeCheckpointError:
        raise
    except Exception as error:  # whatever a reader makes of damaged bytes
        raise _damaged(path, error) from error
    if not isinstance(content, dict) or not isinstance(
            content.get('state_dict', {}), dict):
        raise ValueError(f'{path!r} holds a {type(content).__name__}, not '
                         'a checkpoint with a state_dict of weights')
    if 'state_dict' not in content:
        content = dict(state_dict=content)
    content.setdefault('meta', {})
    return content


def _damaged(path: str, error: Exception) -> ValueError:
    return ValueError(
        f'{path!r} is not a whole PyTorch checkpoint ({error}); it was '
        'cut off or damaged while it was written or copied, or is another '
        'kind of file: take an earlier checkpoint')


def find_resumable(*folders: str,
                   trusted: bool = False) -> tuple[str, dict] | None:
    """Find the checkpoint to go on from: whole, and of the most iterations.

    Not the one that ``last_checkpoint`` names: a job that was killed while it
    saved may have left half of it.

    Args:
        *folders (str): Where a job keeps its checkpoints.
        trusted (bool): See :func:`read_checkpoint`. Defaults to False.

    Returns:
        tuple, optional: Its path and what it holds; None where there is no
        checkpoint.

    Raises:
        UnsafeCheckpointError: Each that training could go on from holds
            more than data.
        ValueError: There are checkpoints, none of them whole.
    """
    found, broken = [], []
    for path in sorted({p for f in folders for p in Path(f).glob('*.pth')}):
        try:
            iterations = _iterations(str(path), trusted)
        except UnsafeCheckpointError as error:
            broken.append(error)
            continue
        except Exception as error:
            broken.append(_damaged(str(path), error))
            continue
        # Those of the best epochs, and published ones, hold weights alone.
        if iterations is not None:
            found.append((iterations, path.stat().st_mtime_ns, str(path)))
    for *_, path in sorted(found, reverse=True):
        try:
            checkpoint = read_checkpoint(path, trusted)
        except ValueError as error:
            broken.append(error)
            continue
        for error in broken:
            print_log(f'passed over: {error}', logger='current',
                      level=logging.WARNING)
        return path, checkpoint
    for error in broken:
        if isinstance(error, UnsafeCheckpointError):
            raise error
    if broken:
        raise ValueError(f'no checkpoint in {" or ".join(map(repr, folders))} '
                         f'can be resumed: {broken[0]}') from broken[0]
    return None


def _iterations(path: str, trusted: bool) -> int | None:
    """Iterations that a checkpoint has seen; None if it holds weights alone.

    Not the files' times: copied files have the times of their copying.
    """
    checkpoint = peek(path, trusted)
    if not isinstance(checkpoint, dict) or 'optimizer' not in checkpoint:
        return None
    return checkpoint.get('meta', {}).get('iter', 0)


def load_weights(model: nn.Module, checkpoint: dict, path: str) -> None:
    """Load a checkpoint's weights; refuse those of another model.

    mmengine only warns about names that do not match, and would go on to
    evaluate random weights, or NaN.

    Args:
        model (nn.Module): The model that is to be evaluated, or its wrapper.
        checkpoint (dict): What :func:`read_checkpoint` returned.
        path (str): Where it was read, for messages.

    Raises:
        ValueError: Names or shapes differ from the model's, or weights are
            not finite.
    """
    model = unwrap(model)
    weights = checkpoint['state_dict']
    found = OrderedDict((name.removeprefix('module.'), value)
                        for name, value in weights.items()
                        if isinstance(name, str))
    found._metadata = getattr(weights, '_metadata', None)
    _leave_out_settings(model, found, path)
    # The model's own reading, which renames what older versions wrote.
    try:
        names = model.load_state_dict(found, strict=False)
    except RuntimeError as error:
        shapes = re.findall(r'size mismatch for ([\w.]+)', str(error))
        if not shapes:
            raise ValueError(f'{path!r} does not fit the model: {error}'
                             ) from error
        problems = [('of another shape', shapes)]
    else:
        # Counts of batches, which evaluation does without, are not in files
        # older than PyTorch 0.4.1.
        missing = [name for name in names.missing_keys
                   if not name.endswith('num_batches_tracked')]
        problems = [('missing', missing), ('unexpected',
                                           names.unexpected_keys)]
    differences = [
        f'{what} {len(keys)} ({", ".join(sorted(keys)[:3])}, ...)'
        for what, keys in problems if keys
    ]
    if differences:
        raise ValueError(
            f'{path!r} does not fit the model of this config; is it the '
            f'checkpoint of another one? Tensors: {"; ".join(differences)}')
    if broken := not_finite(model.state_dict(), model):
        raise ValueError(
            f'{path!r} holds NaN or infinity in {len(broken)} tensors '
            f'({", ".join(broken[:3])}, ...): its training has diverged; '
            'take an earlier checkpoint')


def _leave_out_settings(model: nn.Module, weights: dict[str, Tensor],
                        path: str) -> None:
    """Take buffers out of weights that the model sets from its config.

    Published weights have some, as the mean and deviation of colours.
    """
    kept = model.state_dict()
    for name, own in model.named_buffers():
        if name in kept or name not in weights:
            continue
        value = weights.pop(name)
        if value.shape != own.shape or not torch.allclose(
                value.to(own), own):
            print_log(
                f'{path!r} was trained with another {name}, beginning with '
                f'{value.flatten()[:3].tolist()}, than this config sets and '
                f'is used here: {own.flatten()[:3].tolist()}',
                logger='current', level=logging.WARNING)


def not_finite(weights: dict[str, Tensor], model: nn.Module) -> list[str]:
    """Names of tensors that hold NaN, or of parameters that are infinite.

    Buffers may hold infinity: masks do.

    Args:
        weights (dict[str, Tensor]): Parameters and buffers of the model.
        model (nn.Module): The model, or its wrapper.
    """
    parameters = dict(unwrap(model).named_parameters())
    return [
        name for name, value in weights.items() if value.is_floating_point()
        and not (value.isfinite() if name in parameters
                 else ~value.isnan()).all()
    ]
