"""The residual backbones of a host's zoo, each setting once."""

import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

from mmengine.config import Config

RESIDUAL = re.compile(r'Res2?Ne|RegNet|HRNet')
"""Names of the types that are looked at."""

EXCHANGED = {
    'ResNet': 'StepResNet',
    'ResNeXt': 'StepResNeXt',
    'ResNetV1c': 'StepResNetV1c',
    'ResNetV1d': 'StepResNetV1d',
    'ResNet_CIFAR': 'StepResNetCIFAR',
}
"""What a type is exchanged for; StepBackbone is put around all others."""


def config_files(host: str) -> list[Path]:
    """Config files that a host has brought along, bases left out."""
    root = Path(importlib.import_module(host).__file__).parent
    return sorted(path for path in (root / '.mim' / 'configs').rglob('*.py')
                  if '_base_' not in path.parts)


def found_in(path: Path) -> list[str]:
    """Settings of the residual backbones of a config, as JSON.

    What loads weights is left out, and ``SyncBN`` is ``BN``, which runs
    without a GPU. The scope stands beside them.
    """
    cfg = Config.fromfile(path)
    model = cfg.get('model', {})
    model = model.to_dict() if hasattr(model, 'to_dict') else model
    scope = cfg.get('default_scope', None)
    return sorted({
        json.dumps(dict(plain(backbone), _scope_=scope), sort_keys=True)
        for backbone in backbones(model)
        if RESIDUAL.search(type_name(backbone['type']))
    })


def backbones(node: object) -> Iterator[dict]:
    """Every ``backbone`` in a nested config."""
    if isinstance(node, dict):
        if isinstance(node.get('backbone'), dict) and 'type' in node[
                'backbone']:
            yield node['backbone']
        node = list(node.values())
    if isinstance(node, (list, tuple)):
        for value in node:
            yield from backbones(value)


def plain(node: object) -> object:
    """A config of dicts, lists, numbers and text, without weights."""
    if isinstance(node, dict):
        return {key: plain(value) for key, value in node.items()
                if key not in ('init_cfg', 'pretrained')}
    if isinstance(node, (list, tuple)):
        return [plain(value) for value in node]
    if node in ('SyncBN', 'MMSyncBN'):
        return 'BN'
    return type_name(node) if callable(node) else node


def type_name(type_: object) -> str:
    """Name of a type as text, with its scope where it is a class."""
    if isinstance(type_, str):
        return type_
    return f'{type_.__module__.partition(".")[0]}.{type_.__name__}'


def exchanged(setting: dict) -> dict:
    """The same setting with our type, and steps that change nothing."""
    scope, _, name = setting['type'].rpartition('.')
    if name not in EXCHANGED:
        return dict(type='mmstepnet.StepBackbone', backbone=setting,
                    attention=dict(type='Plain'))
    named = dict(host=scope) if scope else {}
    return {**setting, **named, 'type': f'mmstepnet.{EXCHANGED[name]}',
            'attention': None}
