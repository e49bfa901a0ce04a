"""Running a model on an example, to see what it does."""

import logging
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from functools import cache
from inspect import Parameter, signature
from itertools import product
from typing import Any

import torch
import torch.nn as nn
from torch import Tensor

from mmstepnet.tracing import unwrap

LOGGER = logging.getLogger(__name__)

CONTAINERS = dict, OrderedDict, list, set

IMAGE_MODELS = 'timm.models.', 'torchvision.models.'
"""Libraries whose models are called with images or clips alone."""

MMENGINE = 'init_cfg', 'init_weights'
"""Attributes of backbones of MMEngine's projects. MMAction2's oldest backbones
are plain modules."""

SIZES = 'img_size', 'image_size'
FRAMES = 'num_frames', 'temporal_size', 't_size'
"""Names of the number of frames, in networks of videos."""

NOT_RUN = (
    'it was not run; give example=, what it is called with, such as '
    'torch.zeros(1, 3, 224, 224)'
)
"""Of a model for which no example was given and none could be guessed."""


def guess_inputs(model: nn.Module, outermost: bool) -> Iterator[Tensor | dict]:
    """Inputs that a model of a known library may take, the usual ones first.

    Args:
        model (nn.Module): The model, or a part of one.
        outermost (bool): Whether a module of MMEngine counts as a model: its
            parts look like one.
    """
    like = next(
        (p for p in model.parameters() if p.is_floating_point()),
        torch.zeros(()),
    )
    config = getattr(model, 'config', None)
    named = getattr(model, 'main_input_name', None)  # of transformers
    if isinstance(named, str) and named != 'pixel_values':
        inputs: Any = model.dummy_inputs
        yield {name: t.to(like.device) for name, t in inputs.items()}
    elif isinstance(named, str) or (
        outermost
        and any(hasattr(model, name) for name in MMENGINE)
        or hasattr(model, 'pretrained_cfg')  # of timm
        or type(model).__module__.startswith(IMAGE_MODELS)
    ):
        first = next(
            (
                m
                for m in model.modules()
                if isinstance(m, (nn.Conv1d, nn.Conv2d, nn.Conv3d))
            ),
            None,
        )
        owners = config, *model.modules()
        about = getattr(model, 'pretrained_cfg', None) or {}  # of timm
        size = _attribute(owners, SIZES, (about.get('input_size') or ())[1:])
        # Where it names none, the usual one, and one for large strides.
        sizes = (
            [(256,)]
            if isinstance(first, nn.Conv1d)
            else [(224, 224), (256, 256)]
            if not size
            else [(size, size) if isinstance(size, int) else tuple(size)]
        )
        frames = _attribute(
            owners, FRAMES, 16 if isinstance(first, nn.Conv3d) else 0
        )
        # Networks of frames may mix those of a clip, which lie side by side.
        samples = _attribute(owners[1:], ('num_segments',), 1)
        # A stem may take space into channels before.
        for channels, size in product(
            dict.fromkeys((getattr(first, 'in_channels', 3), 3)), sizes
        ):
            axes = [channels, frames] if frames else [channels]
            images = torch.zeros(
                samples,
                *(reversed(axes) if named else axes),
                *size,
                dtype=like.dtype,
                device=like.device,
            )
            yield dict(pixel_values=images) if named else images


def _attribute(owners: tuple, names: tuple[str, ...], default: object) -> Any:
    """The first value under one of the names: of a config or a module."""
    found = (getattr(owner, name, None) for owner in owners for name in names)
    return next((value for value in found if value), default)


@contextmanager
def on_meta(model: nn.Module) -> Iterator[None]:
    """Show the model on the meta device; nothing is copied or changed.

    What its modules keep of a pass meanwhile is forgotten.
    """
    before = [(vars(m), dict(vars(m))) for m in model.modules()]
    containers = []
    for _, saved in before:
        for value in saved.values():
            if type(value) in CONTAINERS:
                containers.append((value, copy(value)))
    try:
        for attributes, saved in before:
            for key, value in saved.items():
                if isinstance(value, Tensor):
                    attributes[key] = value.to('meta')
                elif key in ('_parameters', '_buffers'):
                    attributes[key] = {
                        k: t if t is None else t.detach().to('meta')
                        for k, t in value.items()
                    }
        yield
    finally:
        for attributes, saved in before:
            attributes.clear()
            attributes.update(saved)
        for value, saved in containers:  # such as a cache
            value.clear()
            if isinstance(value, list):
                value.extend(saved)
            else:
                value.update(saved)


def call_of(
    example: object, samples: int | None = None, device: str | None = None
) -> tuple[tuple, dict]:
    """Arguments of a call, with another number of samples or elsewhere.

    Also of tensors in dicts, lists and tuples among the arguments.
    """
    if isinstance(example, Mapping):  # a dict, or what a tokenizer gives
        args = ()
        kwargs = dict(example)
    else:
        args = example if isinstance(example, (tuple, list)) else (example,)
        kwargs = {}
    sizes = (len(t) for t in _tensors_in((args, kwargs)) if t.dim())
    size = next(sizes, None)

    def change(value: Any) -> Any:
        if next(_tensors_in(value), None) is None:
            return value
        if isinstance(value, Mapping):
            made: Any = copy(value)
            for key, part in value.items():
                made[key] = change(part)
            return made
        if isinstance(value, (list, tuple)):
            parts = map(change, value)
            return (
                type(value)(*parts)
                if hasattr(value, '_fields')
                else type(value)(parts)
            )
        t = value if device is None else value.to(device)
        if samples is not None and t.dim() and len(t) == size:
            t = t[:1].expand(samples, *t.shape[1:]).contiguous()
        return t

    by_name = {key: change(value) for key, value in kwargs.items()}
    return tuple(map(change, args)), by_name


def _tensors_in(value: Any) -> Iterator[Tensor]:
    """Tensors in dicts, lists and tuples, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (Mapping, list, tuple)):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors_in(part)


def run_batch(model: nn.Module, batch: object) -> object:
    """Call a model with a tensor, its arguments, or these by name."""
    args, kwargs = arguments_for(model, batch)
    return model(*args, **kwargs)


def arguments_for(model: nn.Module, batch: object) -> tuple[tuple, dict]:
    """Arguments of a model's call, of a batch as loaders give it.

    Of a pair of images and labels the images, where the model needs one
    argument. What else it does not take is refused.

    Raises:
        ValueError: The model cannot be called with such a batch.
    """
    args, kwargs = call_of(batch)
    call = signature(unwrap(model).forward)
    places = [
        p
        for p in call.parameters.values()
        if p.kind
        in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    ]
    needed = [p for p in places if p.default is Parameter.empty]
    has_labels = _is_labelled(args)
    if has_labels and len(needed) == 1:
        _say_that_labels_are_left_out(type(model).__name__)
        return args[:1], kwargs
    try:
        call.bind(*args, **kwargs)
        if has_labels and places and not needed:
            raise TypeError('which argument the second one is does not show')
    except TypeError as error:
        raise ValueError(
            f'{type(model).__name__} cannot be called with a batch of '
            f'{", ".join(kwargs) or f"{len(args)} tensors"} ({error}); give '
            f'what it is called with, or forward=, which calls it with a part '
            f'of the batch'
        ) from error
    return args, kwargs


def _is_labelled(args: tuple) -> bool:
    """Whether they are images and labels, one integer an image."""
    if len(args) != 2 or not all(isinstance(t, Tensor) for t in args):
        return False
    images, labels = args
    is_integer = not (
        labels.is_floating_point()
        or labels.is_complex()
        or labels.dtype == torch.bool
    )
    return (
        images.is_floating_point()
        and is_integer
        and (labels.shape == images.shape[:1])
    )


@cache
def _say_that_labels_are_left_out(kind: str) -> None:
    LOGGER.warning(
        '%s is called with the images of each batch, without the labels', kind
    )
