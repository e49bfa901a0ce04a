"""The backbones of a project's zoo, each setting once."""

import importlib
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from unittest import mock

import torch
from mmengine.config import Config
from torch import Tensor

EXCHANGED = {
    'ResNet': 'StepResNet',
    'ResNeXt': 'StepResNeXt',
    'ResNetV1c': 'StepResNetV1c',
    'ResNetV1d': 'StepResNetV1d',
    'ResNet_CIFAR': 'StepResNetCIFAR',
}
"""What a type is exchanged for, in the projects whose classes are those;
StepBackbone is put around all others."""

TOLD: dict[str, dict] = dict(
    C2D=dict(example=(1, 3, 8, 224, 224)),
    DSTFormer=dict(example=(1, 27, 17, 3)),
    NRTRModalityTransform=dict(example=(1, 3, 32, 100)),
    TimeSformer=dict(layout='NLC'),
    UniFormerV2=dict(blocks='transformer.resblocks'))
"""What StepBackbone cannot find out by itself."""

JOINTS = {'coco': 17, 'nturgb+d': 25, 'openpose': 18}
"""Joints of a skeleton, by the layout of its graph."""

HAVE_THEM = 'mmdet', 'mmpretrain', 'mmseg', 'mmpose'

GUARDS = dict(mmyolo=dict(mmcv='2.0.1'), mmocr=dict(mmdet='3.1.0'))
"""Versions that a project asks for and that are not installed here; it is
told that they are."""

LACKING = dict(mmaction='mmaction.models.localizers.drn.drn')
"""A module that is missing from a project's package, with its class DRN."""


def bring(project: str) -> None:
    """Import a project and its models, its guards lifted."""
    name = LACKING.get(project)
    while name and name != f'{project}.models.localizers':
        sys.modules[name] = ModuleType(name)
        sys.modules[name].DRN = None
        name = name.rpartition('.')[0]
    with ExitStack() as lifted:
        for other, version in GUARDS.get(project, {}).items():
            lifted.enter_context(mock.patch.object(
                importlib.import_module(other), '__version__', version))
        importlib.import_module(f'{project}.models')


def config_files(project: str) -> list[Path]:
    """Config files that a project has brought along, bases left out."""
    root = Path(importlib.import_module(project).__file__).parent
    return sorted(path for path in (root / '.mim' / 'configs').rglob('*.py')
                  if '_base_' not in path.parts)


def found_in(path: Path) -> list[str]:
    """Settings of the backbones of a config, as JSON.

    What loads weights is left out, and ``SyncBN`` is ``BN``, which runs
    without a GPU. The scope stands beside them: the project's where the
    config names none.
    """
    cfg = Config.fromfile(path)
    model = cfg.get('model', {})
    model = model.to_dict() if hasattr(model, 'to_dict') else model
    project = path.parts[path.parts.index('.mim') - 1]
    scope = cfg.get('default_scope', None) or project
    return sorted({
        json.dumps(dict(plain(backbone), _scope_=scope), sort_keys=True)
        for backbone in backbones(model)
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
        return {key: None if key == 'pretrained' else plain(value)
                for key, value in node.items() if key != 'init_cfg'}
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


def told(setting: dict) -> dict:
    """What StepBackbone has to be told beside a backbone's setting."""
    if 'graph_cfg' in setting:  # persons, frames, joints
        return dict(example=(
            1, 2, 16, JOINTS[setting['graph_cfg']['layout']],
            setting.get('in_channels', 3)))
    return TOLD.get(setting['type'].rpartition('.')[2], {})


def exchanged(setting: dict, scope: str) -> dict:
    """The same setting with our type, and steps that change nothing."""
    host, _, name = setting['type'].rpartition('.')
    if (host or scope) not in HAVE_THEM or name not in EXCHANGED:
        return dict(type='mmstepnet.StepBackbone', backbone=setting,
                    attention=dict(type='Plain'), **told(setting))
    named = dict(host=host) if host else {}
    return {**setting, **named, 'type': f'mmstepnet.{EXCHANGED[name]}',
            'attention': None}


def inputs(setting: dict) -> Iterator[Tensor]:
    """What a backbone may take: images, clips, text, skeletons, sequences."""
    channels = setting.get('in_channels', setting.get('input_channels', 3))
    channels = channels if isinstance(channels, int) else 3
    # Deformable and atrous convolutions refuse maps below 3x3.
    large = any(setting.get(name) for name in ('dcn', 'conv_cfg'))
    yield torch.randn(2, channels, *[96 if large else 64] * 2)
    size = setting.get('img_size', 224)
    yield torch.randn(2, 3, *([size] * 2 if isinstance(size, int) else size))
    yield torch.randn(1, 3, 256, 256)
    yield torch.randn(2, channels, 32, 100)
    yield torch.randn(1, channels, 8, 64, 64)
    for frames in (8, 16, 32):
        yield torch.randn(1, 3, frames, *[
            size if isinstance(size, int) else 224] * 2)
    yield torch.randn(16, 3, 64, 64)  # frames of two clips
    for joints in (17, 25):
        yield torch.randn(2, 2, 16, joints, 3)
    yield torch.randn(2, channels, 243)
    yield torch.randn(2, 27, 17, 3)
