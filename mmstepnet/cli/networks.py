"""The networks of a command, one by one, with their weights and steps."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present

from mmstepnet.attentions.record import KEY
from mmstepnet.steps.files import explain_difference, load_steps
from mmstepnet.stiffness.training import distinct_names

from .early import is_of_a_library
from .models import NamedModel, build_model, check_known
from .wording import in_one_line

WRAPPERS = 'module.', '_orig_mod.', 'model.'
"""Prefixes of DistributedDataParallel (and averages), torch.compile and
Lightning."""


def load_networks(
    names: list[str],
    weights: list[Path],
    steps: str | None,
    pretrained: bool,
    device: str | None,
    labels: bool,
) -> Iterator[NamedModel]:
    """Build each network and bring it to its device.

    Args:
        names (list[str]): Names of models, see :data:`~.choices.KINDS`.
        weights (list[Path]): See :func:`label_networks`.
        steps (str, optional): A file of steps, which go into each network,
            or the folder that it stands in.
        pretrained (bool): Whether the libraries fetch weights.
        device (str, optional): None is a GPU where there is one.
        labels (bool): Whether scores of classes are wanted.

    Raises:
        ValueError: See :func:`label_networks`; there is no such device or
            model, or a file is of another network. Of names and device it is
            said before the first network is built.
    """
    networks = label_networks(names, weights, steps)
    device = device or ('cuda' if torch.cuda.is_available() else 'cpu')
    _check_device(device)
    for name in names:
        check_known(name)
    for label, (name, path) in networks.items():
        network = build_model(name, pretrained, labels)
        network.label = label
        network.settings['model'] = _short(name)
        if path is not None:
            _load_weights(network, path)
            network.settings['weights'] = label.removeprefix(
                f'{_short(name)}.'
            ).removesuffix(_added(steps))
        if steps is not None:
            load_steps(network.model, steps)
            network.settings['steps'] = steps
        has_weights = path is not None or pretrained or _is_folder(name)
        if is_of_a_library(name) and not has_weights:
            network.settings['untrained'] = True
            print(
                f'{label}: its weights are random; give --weights, or '
                f'--pretrained',
                file=sys.stderr,
            )
        network.model.to(device)
        yield network


def _check_device(name: str) -> None:
    """Refuse a device that PyTorch does not have here."""
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(
            f'--device {name} is not there ({in_one_line(error)}); leave it '
            f'out, or give cpu'
        ) from error


def label_networks(
    names: list[str], weights: list[Path], steps: str | None = None
) -> dict[str, tuple[str, Path | None]]:
    """Each network and its file of weights, by the network's label.

    Args:
        names (list[str]): Names of models.
        weights (list[Path]): No files; a file for each model; or several
            files of one model.
        steps (str, optional): A file of steps, whose name stands in each
            label behind a ``+``: with steps a network is another one.
            Defaults to None.

    Raises:
        ValueError: The numbers differ, or two networks have one label.
    """
    if len(names) == 1 and weights:
        names = names * len(weights)
    if weights and len(names) != len(weights):
        raise ValueError(
            f'{len(names)} models need as many --weights, got {len(weights)}'
        )
    labels = [_short(name) for name in names]
    if weights:
        files = distinct_names(weights)
        labels = [f'{label}.{file}' for label, file in zip(labels, files)]
    labels = [label + _added(steps) for label in labels]
    paths = weights or [None] * len(names)
    networks: dict[str, tuple[str, Path | None]] = {}
    for label, name, path in zip(labels, names, paths):
        if label in networks:
            raise ValueError(f'two models would be called {label}')
        networks[label] = (name, path)
    return networks


def _short(name: str) -> str:
    return name.rstrip('/').replace(':', '.').rpartition('/')[2]


def _added(steps: str | None) -> str:
    """What a file of steps, or its folder, adds to a label."""
    if steps is None:
        return ''
    (name,) = distinct_names([Path(os.path.abspath(steps))])
    return f'+{name}'


def _is_folder(name: str) -> bool:
    """Whether a model is a folder, which brings its own weights."""
    return Path(name.removeprefix('hf:')).is_dir()


def _load_weights(network: NamedModel, path: Path) -> None:
    """Load a file, also of the network inside a wrapper."""
    weights = network.read(path)
    weights.pop('n_averaged', None)  # AveragedModel's count
    own = network.model.state_dict()
    for prefix in WRAPPERS:
        if not next(iter(own)).startswith(prefix):
            consume_prefix_in_state_dict_if_present(weights, prefix)
    try:
        network.model.load_state_dict(weights)
    except RuntimeError as error:
        difference = explain_difference(_tensors(weights), _tensors(own))
        if not difference:
            raise
        raise ValueError(
            f'{path} is of another network than {network.settings["model"]}: '
            f'{difference}; give weights of this one, or the name of that one'
        ) from error


def _tensors(state_dict: dict) -> dict[str, Tensor]:
    """Tensors of a state dict; a network may go without further states."""
    return {
        key: value
        for key, value in state_dict.items()
        if isinstance(value, Tensor) and not key.endswith(KEY)
    }
