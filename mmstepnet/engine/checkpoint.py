"""Reading checkpoints with errors that a user can act on."""

import os.path as osp
from pickle import UnpicklingError

import torch
from mmengine.runner import Runner


def check_checkpoint(path: str) -> None:
    """Refuse what is not a whole checkpoint, before a job is built for it.

    Args:
        path (str): A file written by mmengine or ``torch.save``.

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


def load_weights(runner: Runner, path: str) -> None:
    """Load a checkpoint of exactly this model.

    mmengine only warns about names that do not match, and would go on to
    evaluate random weights.

    Raises:
        ValueError: Names or shapes differ from the model's.
    """
    try:
        runner.load_checkpoint(path, map_location='cpu', strict=True)
    except RuntimeError as error:
        raise ValueError(f'{path!r} does not fit the model of this config; is '
                         f'it the checkpoint of another one? {error}'
                         ) from error
