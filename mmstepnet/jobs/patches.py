"""What the tools change in mmengine for the process that they are."""

import os
import os.path as osp
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import torch
from mmengine.config.utils import MODULE2PACKAGE
from mmengine.dist import all_gather_object
from mmengine.fileio import LocalBackend, get_file_backend, register_backend
from mmengine.runner import CheckpointLoader, Runner
from mmengine.runner.checkpoint import (
    _process_mmcls_checkpoint,
    get_deprecated_model_names,
    get_external_models,
    get_mmcls_models,
    get_torchvision_models,
)
from mmengine.utils import is_installed

from mmstepnet.files import write_whole

from .safe_load import TRUST_FLAG, UnsafeCheckpointError, load_file

# By the name of a scheme: mmengine's own index of names and addresses.
INDICES = {
    'torchvision': get_torchvision_models,
    'modelzoo': get_torchvision_models,
    'open-mmlab': get_external_models,
    'openmmlab': get_external_models,
    'mmcls': get_mmcls_models,
}


class FetchError(RuntimeError):
    """Weights could not be fetched.

    Args:
        message (str): Which, and what to do.
        name (str): What the config calls them. mmengine makes errors anew
            from their message alone. Defaults to ``''``.
    """

    def __init__(self, message: str, name: str = ''):
        super().__init__(message)
        self.name = name


def patch_mmengine(trusted: bool = False) -> None:
    """Change mmengine for this process; the tools' ``main`` calls it first.

    - Checkpoints are read as data, wherever they come from: ``load_from``,
      resumption, ``init_cfg`` of pretrained weights; local files, of
      safetensors too, web addresses and the hosts' names of published
      models. Addresses of other kinds are refused.
    - Local files are renamed to their names when they are whole.
    - Errors of images that cannot be decoded name the file.
    - ``_base_='mmseg::...'`` finds the fork's distribution too.

    Args:
        trusted (bool): Whether checkpoints may run code. Defaults to False.
    """
    _read_as_data(trusted)
    register_backend('local', WholeFileBackend, force=True, prefixes='')
    if find_spec('mmcv'):
        _name_images()
    # onedl-mmengine looks for upstream's name of it alone.
    if find_spec('mmseg') and not is_installed(MODULE2PACKAGE['mmseg']):
        MODULE2PACKAGE['mmseg'] = 'mmseg'


class WholeFileBackend(LocalBackend):
    """mmengine's local files, each renamed to its name when it is whole."""

    def put(self, obj: bytes, filepath: str | Path) -> None:
        """Write bytes, see :func:`mmstepnet.files.write_whole`."""
        write_whole(filepath, obj)

    def put_text(self,
                 obj: str,
                 filepath: str | Path,
                 encoding: str = 'utf-8') -> None:
        """Write text, see :meth:`put`."""
        self.put(obj.encode(encoding), filepath)


def warn_of_files_in_place(runner: Runner, folder: str) -> None:
    """Warn where a kill could leave half a checkpoint in a folder."""
    backend = get_file_backend(folder)
    if (isinstance(backend, LocalBackend)
            and not isinstance(backend, WholeFileBackend)):
        runner.logger.warning(
            f'Checkpoints in {folder} are written in place: killed while it '
            'saves, the job leaves half a one. Call '
            'mmstepnet.jobs.patches.patch_mmengine() before the runner is '
            'built, or train with the tools/train.py of mmstepnet')


def preload_checkpoint(path: str, checkpoint: dict) -> None:
    """Let mmengine's next reading of a checkpoint take what was read already.

    Args:
        path (str): Its path or address, as mmengine will be given it.
        checkpoint (dict): What was read. It is on the CPU, from where
            mmengine's runners copy it.
    """
    held = [checkpoint]
    read = CheckpointLoader._get_checkpoint_loader(path)

    # mmengine's log says from where it reads: this function's name, but for
    # its first ten letters.
    def load_from_memory(filename: str, map_location: Any = None) -> dict:
        if filename == path and held:
            return held.pop()
        return read(filename, map_location)

    CheckpointLoader.register_scheme(
        re.escape(path), load_from_memory, force=True)


def _name_images() -> None:
    """Let mmcv say which image it could not decode, an empty one too."""
    from mmcv.transforms import LoadImageFromFile

    transform = LoadImageFromFile.transform
    if transform.__module__ == __name__:  # done before
        return

    def named_transform(self: LoadImageFromFile, results: dict) -> dict | None:
        try:
            return transform(self, results)
        except Exception as error:
            path = results['img_path']
            if str(path) in str(error):
                raise
            raise ValueError(
                f'the image {path!r} cannot be decoded, is it whole? '
                f'({type(error).__name__}: {error})') from error

    LoadImageFromFile.transform = named_transform


def _read_as_data(trusted: bool) -> None:
    def load_from_local(filename: str, map_location: Any = 'cpu') -> Any:
        filename = osp.expanduser(filename)
        if not osp.isfile(filename):
            raise FileNotFoundError(f'checkpoint {filename!r} does not exist')
        return load_file(filename, map_location, trusted)

    register = CheckpointLoader.register_scheme
    register('', load_from_local, force=True)
    if trusted:
        return
    register(('http://', 'https://'), _load_url, force=True)
    register(
        tuple(f'{scheme}://' for scheme in INDICES), _load_named, force=True)
    register(
        tuple(prefix for prefix in CheckpointLoader._schemes
              if prefix and prefix.rstrip(':/') not in (
                  'http', 'https', *INDICES)),
        _refuse,
        force=True)


def _load_url(filename: str, map_location: Any = 'cpu',
              name: str | None = None) -> Any:
    folder = osp.join(torch.hub.get_dir(), 'checkpoints')
    path = osp.join(folder, osp.basename(urlparse(filename).path))
    # One process of a node fetches, all read.
    error, said = None, None
    if int(os.environ.get('LOCAL_RANK', 0)) == 0 and not osp.isfile(path):
        try:
            os.makedirs(folder, exist_ok=True)
            torch.hub.download_url_to_file(filename, path)
        except Exception as found:
            error, said = found, f'{type(found).__name__}: {found}'
    # The others wait here, and would for ever for one that is gone.
    for rank, text in enumerate(all_gather_object(said)):
        if text is not None:
            raise FetchError(
                f'rank {rank} could not fetch {filename!r} to {path!r} '
                f'({text}); fetch the file by hand and put it there, or name '
                f'it by its path, or give None to start from random weights',
                name or filename) from error
    return load_file(path, map_location)


def _load_named(filename: str, map_location: Any = 'cpu') -> Any:
    scheme, name = filename.split('://', 1)
    urls = INDICES[scheme]()
    if INDICES[scheme] is get_external_models:
        name = get_deprecated_model_names().get(name, name)
    if name not in urls:
        raise ValueError(f'{scheme}:// has no model {name!r}; it has '
                         f'{", ".join(sorted(urls))}')
    checkpoint = _load_url(urls[name], map_location, filename)
    # Those are classifiers, of which a config wants the backbone.
    return (_process_mmcls_checkpoint(checkpoint)
            if scheme == 'mmcls' else checkpoint)


def _refuse(filename: str, map_location: Any = 'cpu') -> Any:
    raise UnsafeCheckpointError(
        f'{filename!r}: from there mmengine reads pickles that can run code. '
        f'Fetch the file and name it by its path, or pass {TRUST_FLAG}')
