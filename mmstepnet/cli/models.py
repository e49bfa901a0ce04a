"""Models by a name that says where they come from, for the command."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn as nn
from torch import Tensor

from mmstepnet.steps.files import load_kept, read_weights

KINDS = ('timm:NAME, torchvision:NAME, hf:NAME_OR_FOLDER, mm:CONFIG or '
         'FILE.py:FUNCTION')

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of ImageNet's colours, where a model says nothing."""


@dataclass
class NamedModel:
    """A model and how it is to be fed.

    Attributes:
        model (nn.Module): The model.
        prepare (Callable): Makes a tensor (3, H, W) of a PIL image.
        tokens (Callable, optional): Makes token ids, (L,), of a text, where
            it takes text; None where it takes images.
        note (str): What it says of its preprocessing, where that was not
            told by its library.
        part (str): Name of the submodule that is run and measured, such as
            the backbone of a detector; ``''`` is the model.
        read (Callable): Reads a file of its weights.
    """

    model: nn.Module
    prepare: Callable[[Any], Tensor] | None
    tokens: Callable[[str], Tensor] | None = None
    note: str = ''
    part: str = ''
    read: Callable[[Path], dict[str, Tensor]] = read_weights

    @property
    def measured(self) -> nn.Module:
        """What is run and measured."""
        return self.model.get_submodule(self.part)


def load_model(name: str, pretrained: bool = False) -> NamedModel:
    """Build a model by its name.

    Args:
        name (str): As in :data:`KINDS`.
        pretrained (bool): Whether the library fetches weights. A folder of
            ``hf:`` brings its own. Defaults to False.

    Raises:
        ValueError: There is no such model; the nearest names are told.
        ImportError: The library is not installed.
    """
    kind, _, rest = name.partition(':')
    if kind.endswith('.py') and rest:
        return _from_file(Path(kind), rest)
    loaders = dict(timm=_timm, torchvision=_torchvision, hf=_transformers,
                   mm=_openmmlab)
    if kind not in loaders or not rest:
        raise ValueError(f'{name!r} names no model; give {KINDS}, such as '
                         f'timm:{rest or kind}')
    return loaders[kind](rest, pretrained)


def _unknown(library: str, name: str, known: list[str]) -> ValueError:
    near = get_close_matches(name, known, 3, 0.5)
    return ValueError(f'{library} has no model {name!r}' + (
        f'; near are {", ".join(near)}' if near else ''))


def _timm(name: str, pretrained: bool) -> NamedModel:
    import timm
    import timm.data
    if not timm.is_model(name.partition('.')[0]):
        raise _unknown('timm', name, timm.list_models())
    model = timm.create_model(name, pretrained=pretrained)
    config = timm.data.resolve_model_data_config(model)
    prepare: Any = timm.data.create_transform(**config)
    return NamedModel(model, prepare)


def _torchvision(name: str, pretrained: bool) -> NamedModel:
    from torchvision import models
    if name not in models.list_models():
        raise _unknown('torchvision', name, models.list_models())
    known: Any = models.get_model_weights(name)
    weights = known.DEFAULT
    given = dict(weights=weights if pretrained else None)
    if not pretrained and 'weights_backbone' in signature(
            models.get_model_builder(name)).parameters:
        given['weights_backbone'] = None  # fetched by default
    model = models.get_model(name, **given)
    return NamedModel(model, weights.transforms())


def _transformers(name: str, pretrained: bool) -> NamedModel:
    import transformers
    folder = list(Path(name).iterdir()) if Path(name).is_dir() else []
    config = transformers.AutoConfig.from_pretrained(
        name, trust_remote_code=False)
    if pretrained or any(p.suffix in ('.safetensors', '.bin') for p in folder):
        model = transformers.AutoModel.from_pretrained(
            name, trust_remote_code=False)
    else:
        model = transformers.AutoModel.from_config(config)
    if folder:
        load_kept(model, name)
    if getattr(model, 'main_input_name', '') == 'pixel_values':
        try:
            processor = transformers.AutoImageProcessor.from_pretrained(name)
        except OSError:
            size = getattr(config, 'image_size', 224)
            return NamedModel(model, *_usual(size))
        return NamedModel(model, lambda image: processor(
            images=image, return_tensors='pt')['pixel_values'][0])
    vocabulary = config.get_text_config().vocab_size
    if folder and not any(p.name.startswith(
            ('tokenizer', 'vocab', 'spiece')) for p in folder):
        return NamedModel(
            model, None,
            lambda text: torch.tensor(list(text.encode())) % vocabulary,
            'there is no tokenizer: bytes are the tokens')
    tokenizer = transformers.AutoTokenizer.from_pretrained(name)
    return NamedModel(model, None, lambda text: tokenizer(
        text, return_tensors='pt')['input_ids'][0])


def _openmmlab(name: str, pretrained: bool) -> NamedModel:
    if importlib.util.find_spec('mmengine') is None:
        raise ImportError(
            f'mm:{name} needs MMEngine and the library that the config is '
            f"of: pip install 'mmstepnet[onedl]'")
    from mmengine.config import Config
    from mmengine.dataset import Compose
    from mmengine.registry import MODELS, init_default_scope
    if not Path(name).is_file():
        raise ValueError(f'there is no config {name}')
    config = Config.fromfile(name)
    init_default_scope(config.get('default_scope', 'mmengine'))
    model = MODELS.build(config.model)
    if pretrained:
        model.init_weights()
    # Only a classifier is run to its end: others have heads that decode.
    classifies = any(
        kind.__name__ == 'BaseClassifier' for kind in type(model).__mro__)
    part = '' if classifies or not hasattr(model, 'backbone') else 'backbone'
    loader = config.get('test_dataloader') or {}
    pipeline = config.get('test_pipeline') or loader.get(
        'dataset', {}).get('pipeline')
    if not pipeline:
        return NamedModel(
            model, *_usual(224), part=part, read=_of_a_training)
    # The picture is there, and of labels nothing is needed.
    transforms = Compose([step for step in pipeline
                          if not step['type'].rpartition('.')[2].startswith(
                              'Load')])

    def prepare(image: Any) -> Tensor:
        pixels = np.ascontiguousarray(np.asarray(image)[..., ::-1])  # BGR
        size = pixels.shape[:2]
        packed = transforms(dict(
            img=pixels, img_shape=size, ori_shape=size, img_path='',
            img_id=0))
        batch = {key: [value] for key, value in packed.items()}
        return model.data_preprocessor(batch, False)['inputs'][0]
    return NamedModel(model, prepare, part=part, read=_of_a_training)


def _of_a_training(path: Path) -> dict[str, Tensor]:
    """Weights of a checkpoint, which MMEngine fills with other records."""
    from mmstepnet.jobs.checkpoint import read_checkpoint
    return read_checkpoint(str(path))['state_dict']


def _from_file(path: Path, function: str) -> NamedModel:
    if not path.is_file():
        raise ValueError(f'there is no file {path}')
    spec: Any = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, function):
        raise ValueError(f'{path} has no function {function!r}')
    found = getattr(module, function)()
    model, *prepare = found if isinstance(found, tuple) else (found, )
    if not isinstance(model, nn.Module):
        raise ValueError(
            f'{path}:{function} returned a {type(model).__name__}; it must '
            f'return a model, or a model and what makes a tensor of a picture')
    return NamedModel(model, *(prepare or _usual(224)))


def _usual(size: int | tuple | list) -> tuple:
    """ImageNet's preprocessing, no text, and a note that says so."""
    from torchvision import transforms
    size = tuple(size) if isinstance(size, (tuple, list)) else (size, size)
    prepare = transforms.Compose([
        transforms.Resize(size), transforms.ToTensor(),
        transforms.Normalize(MEAN, DEVIATION)])
    return prepare, None, (f"its preprocessing is not known: ImageNet's, at "
                           f'{size[0]} x {size[1]}')
