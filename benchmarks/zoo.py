"""The networks of other libraries: what is found in them, and what changes.

    python -m benchmarks.zoo configs rows.jsonl mmdet --table docs/benchmarks/backbones.tsv
    python -m benchmarks.zoo families found.jsonl timm --table docs/benchmarks/families.tsv

``configs`` exchanges the type of each backbone of a project's configs for
ours and compares outputs in evaluation mode; where small images are enough
gradients, outputs and buffers after one step, which modules train and which
parameters have a gradient; and every attribute that an argument of the
constructor sets. All must be equal to the bit. It also compares outputs with
StepNet at ``init_step=1``, which may round differently. ``families`` looks for
steps on the meta device.

Each row is written to the file as it comes; a second call goes on where the
first ended. ``--table`` writes what follows from the rows into a table, in
place of its lines of the same libraries.
"""  # noqa: E501

import argparse
import contextlib
import copy
import gc
import importlib
import json
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from inspect import signature
from itertools import chain, groupby
from pathlib import Path
from types import ModuleType
from unittest import mock

import torch
import torch.nn as nn
from torch import Tensor
from torch.utils._pytree import tree_flatten

from mmstepnet import find_steps, insert_steps, remove_steps
from mmstepnet.steps import fused

EXCHANGED = {
    'ResNet': 'StepResNet',
    'ResNeXt': 'StepResNeXt',
    'ResNetV1c': 'StepResNetV1c',
    'ResNetV1d': 'StepResNetV1d',
    'ResNet_CIFAR': 'StepResNetCIFAR',
}
"""What a type is exchanged for, in the projects whose classes are those;
StepBackbone is put around all others."""

HAVE_THEM = 'mmdet', 'mmpretrain', 'mmseg', 'mmpose'

ARGUMENTS: dict[str, dict] = dict(
    C2D=dict(example=(1, 3, 8, 224, 224)),
    DSTFormer=dict(example=(1, 27, 17, 3)),
    NRTRModalityTransform=dict(example=(1, 3, 32, 100)),
    TimeSformer=dict(layout='NLC'),
    UniFormerV2=dict(blocks='transformer.resblocks'),
)
"""What StepBackbone cannot find out by itself."""

JOINTS = {'coco': 17, 'nturgb+d': 25, 'openpose': 18}
"""Joints of a skeleton, by the layout of its graph."""

ASSUMED = dict(mmyolo=dict(mmcv='2.0.1'), mmocr=dict(mmdet='3.1.0'))
"""Versions that a project asks for and that are not installed here; it sees
these."""

OURS_ALONE = {'zero_init_residual'}
"""Defaults that are ours: StepResNet has False, where the hosts have True."""

WARM = 1e-5
"""Largest relative difference of outputs with StepNet at ``init_step=1``."""

LARGEST = 2 * 3 * 96 * 96
"""Most values of an input with which a step is trained."""

MOST = 600_000_000
"""Parameters of a network that is compared: 24 GiB of memory take four."""

HOST, NONE, REFUSED = "the host's own", 'no residual block', 'refused'
"""What verdicts begin with; all others but '' are differences."""

KINDS = 'equal', NONE, REFUSED, HOST, 'different'


def bring(project: str) -> None:
    """Import a project and its models, as if what it asks for were there."""
    if project == 'mmaction':  # a module that its package lacks
        drn = 'mmaction.models.localizers.drn'
        for name in (drn, f'{drn}.drn'):
            sys.modules[name] = ModuleType(name)
            sys.modules[name].DRN = None
    with contextlib.ExitStack() as stack:
        for other, version in ASSUMED.get(project, {}).items():
            stack.enter_context(
                mock.patch.object(
                    importlib.import_module(other), '__version__', version
                )
            )
        importlib.import_module(f'{project}.models')


def found_in(path: Path) -> list[str]:
    """Settings of the backbones of a config, as JSON.

    What loads weights is left out, and ``SyncBN`` is ``BN``, which runs
    without a GPU. The scope stands beside them: the project's where the
    config names none.
    """
    from mmengine.config import Config

    cfg = Config.fromfile(path)
    model = cfg.get('model', {})
    model = model.to_dict() if hasattr(model, 'to_dict') else model
    project = path.parts[path.parts.index('.mim') - 1]
    scope = cfg.get('default_scope', None) or project
    return sorted(
        {
            json.dumps(dict(plain(backbone), _scope_=scope), sort_keys=True)
            for backbone in backbones(model)
        }
    )


def backbones(node: object) -> Iterator[dict]:
    """Every ``backbone`` in a nested config."""
    if isinstance(node, dict):
        backbone = node.get('backbone')
        if isinstance(backbone, dict) and 'type' in backbone:
            yield backbone
        node = list(node.values())
    if isinstance(node, (list, tuple)):
        for value in node:
            yield from backbones(value)


def plain(node: object) -> object:
    """A config of dicts, lists, numbers and text, without weights."""
    if isinstance(node, dict):
        return {
            key: None if key == 'pretrained' else plain(value)
            for key, value in node.items()
            if key != 'init_cfg'
        }
    if isinstance(node, (list, tuple)):
        return [plain(value) for value in node]
    if node in ('SyncBN', 'MMSyncBN'):
        return 'BN'
    if isinstance(node, type):
        return f'{node.__module__.partition(".")[0]}.{node.__name__}'
    return node


def arguments(setting: dict) -> dict:
    """What StepBackbone is given beside a backbone's setting."""
    if 'graph_cfg' in setting:  # persons, frames, joints
        return dict(
            example=(
                1,
                2,
                16,
                JOINTS[setting['graph_cfg']['layout']],
                setting.get('in_channels', 3),
            )
        )
    side = setting.get('img_size', 0)
    large = isinstance(side, int) and side > 256  # the sides that are guessed
    return ARGUMENTS.get(
        setting['type'].rpartition('.')[2],
        dict(example=(1, 3, side, side)) if large else {},
    )


def exchanged(setting: dict, scope: str) -> dict:
    """The same setting with our type, and steps that change nothing."""
    host, _, name = setting['type'].rpartition('.')
    if (host or scope) not in HAVE_THEM or name not in EXCHANGED:
        return dict(
            type='mmstepnet.StepBackbone',
            backbone=setting,
            attention=dict(type='Plain'),
            **arguments(setting),
        )
    named = dict(host=host) if host else {}
    return {
        **setting,
        **named,
        'type': f'mmstepnet.{EXCHANGED[name]}',
        'attention': None,
    }


def inputs(setting: dict) -> Iterator[Tensor]:
    """What a backbone may take: images, clips, text, skeletons, sequences."""
    channels = setting.get('in_channels', setting.get('input_channels', 3))
    channels = channels if isinstance(channels, int) else 3
    # Deformable and atrous convolutions refuse maps below 3x3.
    large = any(setting.get(name) for name in ('dcn', 'conv_cfg'))
    size = setting.get('img_size', 224)
    sides = [size] * 2 if isinstance(size, int) else size
    for shape in (
        (2, channels, *[96 if large else 64] * 2),
        (2, 3, *sides),
        (1, 3, 256, 256),
        (2, channels, 32, 100),
        (1, channels, 8, 64, 64),
        *((1, 3, frames, *sides) for frames in (8, 16, 32)),
        (16, 3, 64, 64),  # frames of two clips
        *((2, 2, 16, joints, 3) for joints in (17, 25)),
        (2, channels, 243),
        (2, 27, 17, 3),
    ):
        yield torch.randn(shape)


def compare(setting: dict) -> str:
    """Compare a host's backbone and ours; empty where they are equal.

    Args:
        setting (dict): Config of the host's backbone, with ``_scope_``.
    """
    from mmengine.registry import MODELS, DefaultScope

    setting = copy.deepcopy(setting)
    scope = setting.pop('_scope_')
    with DefaultScope.overwrite_default_scope(scope):
        torch.manual_seed(0)
        try:
            try:
                theirs = MODELS.build(copy.deepcopy(setting))
            except AssertionError:  # of lists that JSON made of tuples
                setting = with_tuples(setting)
                theirs = MODELS.build(copy.deepcopy(setting))
        except Exception as error:
            return f'{HOST} cannot be built: {in_a_line(error)}'
        if sum(t.numel() for _, t in named(theirs)) > MOST:
            return f'{HOST} is too large for this comparison'
        draw_anew(theirs)
        # State dicts of some do not hold all; some change with the size.
        weights = {name: t.detach().clone() for name, t in named(theirs)}
        theirs.eval()
        images, expected, error = run(theirs, setting)
        if images is None:
            return f'{HOST} runs on no input of ours: {in_a_line(error)}'
        if not all(out.isfinite().all() for out in expected):
            return f'{HOST} outputs are not finite with these weights'
        try:
            ours = MODELS.build(exchanged(setting, scope))
        except (ValueError, RuntimeError, TypeError, KeyError) as error:
            return (
                NONE
                if 'no residual block' in str(error)
                or 'It adds no two tensors' in str(error)
                else f'{REFUSED}: {in_a_line(error)}'
            )
        try:
            return '; '.join(
                differences(
                    ours, theirs, weights, images, expected, arguments(setting)
                )
            )
        except Exception as error:
            return f'does not run: {in_a_line(error)}'


def draw_anew(model: nn.Module) -> None:
    """Draw weights and running statistics, so that no norm is at its start.

    Matrices and kernels keep the variance of what they are given.
    """
    generator = torch.Generator().manual_seed(0)
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point():
            noise = torch.randn(tensor.shape, generator=generator)
            if tensor.dim() > 1:
                tensor.copy_(noise / tensor[0].numel() ** 0.5)
            elif name.endswith('running_var'):
                tensor.copy_(1 + 0.3 * noise.abs())
            elif name.endswith('weight'):
                tensor.copy_(1 + 0.3 * noise)
            else:
                tensor.copy_(0.3 * noise)


def with_tuples(value: object) -> object:
    """The same with tuples for lists."""
    if isinstance(value, dict):
        return {key: with_tuples(part) for key, part in value.items()}
    return tuple(map(with_tuples, value)) if isinstance(value, list) else value


def run(
    model: nn.Module, setting: dict
) -> tuple[Tensor | None, list[Tensor], Exception | None]:
    """The first input that a model takes, and what it returns."""
    failed = None
    for images in inputs(setting):
        try:
            with torch.no_grad():
                torch.manual_seed(0)  # of masks that are drawn
                outs = tensors(model(images))
        except Exception as error:  # whatever a network raises there
            failed = failed or error
            continue
        if outs:
            return images, outs, None
    return None, [], failed


def tensors(outs: object) -> list[Tensor]:
    """All tensors of an output, in their order."""
    return [t for t in tree_flatten(outs)[0] if isinstance(t, Tensor)]


def named(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers of a model, by name."""
    return chain(model.named_parameters(), model.named_buffers())


def in_a_line(error: Exception | None) -> str:
    """An error in a line, without this machine's folders."""
    text = re.sub(r"[^ '\"]*/site-packages/", '', str(error))
    return f'{type(error).__name__}: {" ".join(text.split())[:160]}'


def parameters(host: type) -> dict[str, object]:
    """What the constructors of a class and of its parents take."""
    return {
        name: parameter
        for cls in host.__mro__
        for name, parameter in signature(cls.__init__).parameters.items()
        if name not in ('self', 'args', 'kwargs')
    }


def differences(
    ours: nn.Module,
    theirs: nn.Module,
    weights: dict[str, Tensor],
    images: Tensor,
    expected: list[Tensor],
    options: dict,
) -> Iterator[str]:
    """Say what differs between two backbones, if anything."""
    kept, other = (set(model.state_dict()) for model in (ours, theirs))
    if kept != other:
        yield f'other keys: {sorted(kept ^ other)[:3]}'
        return
    with torch.no_grad():
        for name, t in named(ours):
            t.copy_(weights.pop(name))
    for name in parameters(type(theirs)).keys() - OURS_ALONE:
        values = [getattr(model, name, None) for model in (ours, theirs)]
        if not isinstance(values[0], nn.Module) and repr(values[0]) != repr(
            values[1]
        ):
            yield f'{name} is {values[0]!r}, not {values[1]!r}'
    ours.eval()  # which returns None in the hosts
    with torch.no_grad():
        torch.manual_seed(0)
        if not same(tensors(ours(images)), expected):
            yield 'other outputs in eval mode'
    warm = copy.deepcopy(ours)
    remove_steps(warm)
    if 'example' in options:
        options = dict(options, example=torch.zeros(options['example']))
    insert_steps(warm, 'StepNet', first_block=True, **options)
    warm.eval()
    with torch.no_grad(), fused(False):
        torch.manual_seed(0)
        worst = max(
            relative(a, b) for a, b in zip(tensors(warm(images)), expected)
        )
    if not worst <= WARM:
        yield f'outputs with StepNet at 1 differ by {worst:.1e}'
    del warm
    if images.numel() > LARGEST:
        return
    for module in chain(ours.modules(), theirs.modules()):
        if getattr(module, 'with_cp', False):
            # Their checkpoints, which reenter, sum gradients in another order.
            module.with_cp = False
    after = [one_step(model, images) for model in (ours, theirs)]
    for name, a, b in zip(('outputs', 'buffers', 'gradients'), *after):
        if not same(a, b):
            yield f'other {name} after a step'
    modes = [
        {
            name: (m.training, [p.requires_grad for p in m.parameters()])
            for name, m in model.named_modules()
        }
        for model in (ours, theirs)
    ]
    if any(modes[0][name] != mode for name, mode in modes[1].items()):
        yield 'other modules train'


def one_step(model: nn.Module, images: Tensor) -> tuple:
    """Outputs and buffers after one step of SGD, and its gradients."""
    model.train()
    torch.manual_seed(0)  # of stochastic depth and dropout
    loss = sum(
        (out * torch.randn(out.shape)).mean() for out in tensors(model(images))
    )
    if loss.requires_grad:  # not where all stages are frozen
        loss.backward()
    moved = [p for p in model.parameters() if p.grad is not None]
    with torch.no_grad():
        for p in moved:  # of a length that no network blows up with
            p -= 1e-3 * p.grad / p.grad.abs().max().clamp(min=1e-12)
        torch.manual_seed(0)
        outs = tensors(model(images))
    return outs, list(model.buffers()), [p.grad for p in moved]


def same(got: list[Tensor], expected: list[Tensor]) -> bool:
    """Whether tensors are equal to the bit, and finite."""
    return len(got) == len(expected) and all(
        torch.equal(a, b) and bool(a.isfinite().all())
        for a, b in zip(got, expected)
    )


def relative(a: Tensor, b: Tensor) -> float:
    """Difference in the 2-norm, relative to b."""
    return float((a - b).float().norm() / b.float().norm().clamp(min=1e-9))


def config_settings(host: str) -> dict[str, list[str]]:
    """Settings of the backbones of each config that a project brings."""
    bring(host)
    root = Path(importlib.import_module(host).__file__).parent / '.mim'
    found = {}
    for path in sorted((root / 'configs').rglob('*.py')):
        if '_base_' not in path.parts:
            name = path.relative_to(root / 'configs').as_posix()
            try:
                found[name] = found_in(path)
            except Exception as error:  # of a base or module that is missing
                found[name] = [f'cannot be read: {in_a_line(error)}']
    return {name: settings for name, settings in found.items() if settings}


def config_row(host: str, setting: str) -> str:
    """The verdict on a setting, see :func:`compare`."""
    return (
        compare(json.loads(setting))
        if setting[0] == '{'
        else f'{HOST} config {setting}'
    )


def worst(verdicts: list[str]) -> tuple[str, str]:
    """Kind and text of a config's verdict, which may have several parts."""
    kinds = [
        'equal'
        if not v
        else next((k for k in KINDS if v.startswith(k)), 'different')
        for v in verdicts
    ]
    order = NONE, 'equal', HOST, REFUSED, 'different'
    return max(zip(kinds, verdicts), key=lambda pair: order.index(pair[0]))


def config_lines(host: str, rows: dict[str, str]) -> Iterator[list]:
    """How many configs of each type got a verdict, the frequent types first.

    Configs with the same settings are run once, and each is counted.
    """
    types = {}
    for settings in config_settings(host).values():
        kind, verdict = worst([rows[s] for s in settings])
        first = (
            json.loads(settings[0])['type'] if settings[0][0] == '{' else '–'
        )
        types.setdefault(first, Counter())[kind, verdict] += 1
    for first, counts in sorted(types.items(), key=lambda t: -t[1].total()):
        for (kind, verdict), n in sorted(counts.items()):
            yield [first, kind, n, '' if kind in ('equal', NONE) else verdict]


TEXT = dict(
    hidden_size=32,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=64,
    vocab_size=100,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)
VISION = dict(
    hidden_size=32,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=64,
    image_size=32,
    patch_size=8,
)
STAGES = dict(depths=[2, 2, 2, 2], hidden_sizes=[8, 16, 32, 64])
TRANSFORMERS: dict[str, tuple[dict, str]] = {
    **{
        name: (TEXT, 'words')
        for name in (
            'Bert',
            'Roberta',
            'DebertaV2',
            'Electra',
            'CLIPText',
            'Llama',
        )
    },
    'ModernBert': (dict(TEXT, cls_token_id=1, sep_token_id=2), 'words'),
    'Albert': (dict(TEXT, embedding_size=32), 'words'),
    'XLNet': (
        dict(vocab_size=100, d_model=32, n_layer=3, n_head=4, d_inner=64),
        'words',
    ),
    'T5Encoder': (
        dict(
            vocab_size=100,
            d_model=32,
            d_kv=8,
            d_ff=64,
            num_layers=3,
            num_heads=4,
        ),
        'words',
    ),
    'GPT2': (
        dict(
            vocab_size=100,
            n_embd=32,
            n_layer=3,
            n_head=4,
            bos_token_id=1,
            eos_token_id=2,
        ),
        'words',
    ),
    'Mistral': (dict(TEXT, num_key_value_heads=2), 'words'),
    **{
        name: (VISION, 'pixels')
        for name in ('CLIPVision', 'SiglipVision', 'ViT', 'Dinov2', 'Beit')
    },
    'Swin': (
        dict(
            image_size=32,
            patch_size=2,
            embed_dim=16,
            depths=[2, 2],
            num_heads=[2, 4],
            window_size=4,
        ),
        'pixels',
    ),
    'Segformer': (STAGES, 'pixels'),
    'ConvNextV2': (STAGES, 'pixels'),
}
"""Small configurations, and what each is given."""

VIDEO_SIDES = {'s3d': 224, 'swin3d': 224, 'mvit': 224}
"""Image size of torchvision's video networks by their names; others: 112."""


def names(library: str) -> list[str]:
    """Names of a library's models."""
    if library == 'transformers':
        return list(TRANSFORMERS)
    where = importlib.import_module(
        'timm' if library == 'timm' else 'torchvision.models'
    )
    return where.list_models()


def family(library: str, name: str) -> str:
    """Name of the Python module that a model is made in."""
    if library == 'transformers':
        kind = f'{name.removesuffix("Encoder")}Model'
        made = getattr(importlib.import_module(library), kind)
        return made.__module__.split('.')[-2]
    builder = (
        importlib.import_module('timm').model_entrypoint(name)
        if library == 'timm'
        else importlib.import_module('torchvision.models').get_model_builder(
            name
        )
    )
    return builder.__module__.partition('.models.')[2]


def build(library: str, name: str) -> tuple[nn.Module, tuple | dict]:
    """A model and its inputs."""
    source = importlib.import_module(library)
    if library == 'transformers':
        settings, kind = TRANSFORMERS[name]
        whole = name.removesuffix('Encoder')
        model = getattr(source, f'{whole}Model')(
            getattr(source, f'{whole}Config')(**settings)
        )
        given = (
            dict(input_ids=torch.arange(24).view(2, 12))
            if kind == 'words'
            else dict(
                pixel_values=torch.rand(
                    2, 3, *[settings.get('image_size', 64)] * 2
                )
            )
        )
        return model if whole == name else model.get_encoder(), given
    if library == 'timm':
        model = source.create_model(name)
        size = model.pretrained_cfg.get('input_size', (3, 224, 224))
        return model, (torch.rand(2, *size),)
    kind, options = family(library, name), {}
    if kind.startswith(('detection', 'segmentation')):
        options = dict(weights_backbone=None)
    if kind.startswith('detection') and not name.startswith('ssd'):
        options.update(min_size=224, max_size=224)  # 800 takes minutes
    model = source.models.get_model(name, **options)
    if kind.startswith('detection'):
        return model, (list(torch.rand(2, 3, 224, 224)),)
    if kind.startswith('optical_flow'):
        return model, (torch.rand(2, 3, 128, 128),) * 2
    if kind.startswith('video'):
        side = next(
            (n for k, n in VIDEO_SIDES.items() if name.startswith(k)), 112
        )
        return model, (torch.rand(2, 3, 16, side, side),)
    return model, (
        torch.rand(2, 3, *[299 if name == 'inception_v3' else 224] * 2),
    )


def family_row(library: str, name: str) -> list:
    """Steps, stages, what is left out, and what ``insert_steps`` does."""
    kind = family(library, name)
    # Detectors compare values, and torchvision's RegNet computes its widths.
    on_meta = not (
        library == 'transformers'
        or kind == 'regnet'
        or kind.startswith('detection')
    )
    try:
        with torch.device('meta' if on_meta else 'cpu'):
            model, given = build(library, name)
        args, named = ((), given) if isinstance(given, dict) else (given, {})
        found = find_steps(model.eval(), *args, **named)
    except Exception as error:  # whatever a network raises there
        return [kind, 0, 0, in_a_line(error), '']
    recorded = [step for step in found if not step.left_out]
    reasons = Counter(step.left_out for step in found if step.left_out)
    try:
        done = f'{len(insert_steps(model, example=given))} blocks'
    except ValueError as error:
        done = f'refused: {in_a_line(error)}'
    return [
        kind,
        len(recorded),
        len({step.stage for step in recorded}),
        '; '.join(f'{n} {why}' for why, n in reasons.items()),
        done if found else '',
    ]


def family_lines(library: str, rows: dict[str, list]) -> Iterator[list]:
    """A line a family: its first model, and the models without steps."""
    for kind, group in groupby(
        sorted(rows.items(), key=lambda r: (r[1][0], r[0])), lambda r: r[1][0]
    ):
        group = list(group)
        first, (_, *cells) = group[0]
        without = [name for name, row in group if not row[1]]
        yield [
            kind,
            first,
            *cells,
            len(group),
            'all' if len(without) == len(group) else ', '.join(without),
        ]


def write_table(
    path: Path, header: Sequence[str], found: dict[str, list[list]]
) -> None:
    """Write lines of libraries; those of others stay as they are."""
    kept = path.read_text('utf-8').splitlines()[1:] if path.exists() else []
    texts = {
        library: [*lines]
        for library, lines in groupby(kept, lambda line: line.split('\t')[0])
    }
    for library, lines in found.items():
        texts[library] = ['\t'.join(map(str, line)) for line in lines]
    lines = ['\t'.join(header), *chain(*map(texts.get, sorted(texts)))]
    path.write_text('\n'.join(lines) + '\n', 'utf-8')


def settings_of(host: str) -> list[str]:
    """All settings of a project's configs."""
    return sorted(set(chain(*config_settings(host).values())))


COMMANDS: dict[str, tuple[Callable, Callable, Callable, str]] = dict(
    configs=(
        settings_of,
        config_row,
        config_lines,
        'type, verdict, configs, why',
    ),
    families=(
        names,
        family_row,
        family_lines,
        'module, first model, recorded, stages, left out, insert_steps, '
        'models run, without steps',
    ),
)
"""What is gone through, its row, and the lines that rows make, with their
header."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument('command', choices=COMMANDS, help='see above')
    parser.add_argument('rows', type=Path, help='file of the rows so far')
    parser.add_argument(
        'libraries',
        nargs='+',
        metavar='LIBRARY',
        help='timm, torchvision, transformers; of configs '
        'mmdet, mmpretrain and others of OpenMMLab',
    )
    parser.add_argument(
        '--table',
        type=Path,
        help='gets the lines of each, set apart by tabs. Default: none is '
        'written',
    )
    args = parser.parse_args()
    warnings.simplefilter('ignore')
    args.rows.touch()
    rows = {
        (library, name): row
        for library, name, row in map(
            json.loads, args.rows.read_text('utf-8').splitlines()
        )
    }
    listed, make, lines_of, header = COMMANDS[args.command]
    found, installed = {}, metadata.packages_distributions()
    for library in args.libraries:
        for name in listed(library):
            if (library, name) not in rows:
                row = rows[library, name] = make(library, name)
                print(library, name, row, flush=True)
                gc.collect()  # hooks and their modules hold each other
                with args.rows.open('a', encoding='utf-8') as file:
                    print(json.dumps([library, name, row]), file=file)
        version = metadata.version(installed[library][0])
        own = {n: r for (lib, n), r in rows.items() if lib == library}
        found[library] = [
            [library, version, *line] for line in lines_of(library, own)
        ]
    if args.table:
        write_table(
            args.table, ['library', 'version', *header.split(', ')], found
        )
        return
    for line in chain(*found.values()):
        print(*line, sep='\t')


if __name__ == '__main__':
    main()
