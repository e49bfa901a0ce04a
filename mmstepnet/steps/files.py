"""Steps in a file of their own, which goes on top of any copy of the model.

The file is one of safetensors. Its tensors are those of the attentions, BN
statistics included, and of the modules that were named. Its metadata has, as
JSON, the version of the format, a digest of it all, and for each block its
class, the types and arguments of its attentions and the places of its steps;
for each block that was removed, what stands in its place.
"""

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import torch.distributed as dist
import torch.nn as nn
from safetensors import SafetensorError, safe_open
from torch import Tensor

from mmstepnet.attentions import ATTENTIONS
from mmstepnet.attentions.record import KEY
from mmstepnet.files import write_whole
from mmstepnet.messages import inform

from .insert import describe, put_in
from .modules import check_unsharded, find_modules_to_save
from .notes import write_notes
from .removal import exchange
from .residual import ResidualStep
from .stock import (
    Blocks,
    Modules,
    Stock,
    build_stand_ins,
    build_steps,
    fits,
    in_use,
    tensors_of,
    width_here,
    width_of,
)

LOGGER = logging.getLogger(__name__)

FORMAT = 2
"""Version of the format."""

NAME = 'steps.safetensors'
METADATA = 'mmstepnet'
CHECKPOINT_KEYS = 'state_dict', 'model_state_dict', 'model'
"""Where checkpoints of trainers keep the weights."""

WHOLE = (
    'steps in the weights of a whole model are read by insert_steps, '
    'with the arguments of then, and load_state_dict'
)


def save_steps(
    model: nn.Module, path: str | Path, modules_to_save: Iterable[str] = ()
) -> None:
    """Write the steps of a model, and nothing else, to a file.

    The names of blocks that :func:`remove_blocks` took out are in it, too.
    In DDP and FSDP2 each process calls it, and the first one writes. A
    ``steps.safetensors`` in a folder of transformers or PEFT is named in its
    config and its model card.

    Args:
        model (nn.Module): A model with steps, in a wrapper or not.
        path (str | Path): The file, ``*.safetensors``, or a folder, which
            gets a ``steps.safetensors``.
        modules_to_save (Iterable[str]): Names of further modules whose
            weights belong to it, such as a head that was trained.

    Raises:
        TypeError: ``modules_to_save`` is no list of names.
        ValueError: There are no steps, a module does not exist, or an
            attention could not be built again, as after
            :func:`mmstepnet.fold` or while it is pruned by a mask.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from torchvision.models import resnet18
        >>> import mmstepnet
        >>> model = resnet18()
        >>> names = mmstepnet.insert_steps(model)
        >>> with TemporaryDirectory() as folder:
        ...     mmstepnet.save_steps(model, folder)
        ...     mmstepnet.load_steps(resnet18(), folder) == names
        True
    """
    stock = Stock(model)
    named = find_modules_to_save(stock.modules, modules_to_save)
    header = _header(stock, named)
    tensors = {}
    for key, t in _tensors(_learned(stock, named)).items():
        tensors[key] = _whole(t).detach().cpu().contiguous().clone()
    if dist.is_available() and dist.is_initialized() and dist.get_rank():
        return
    content = json.dumps(header | dict(digest=_digest(header, tensors)))
    path = Path(path)
    if path.suffix != '.safetensors':
        path = path / NAME
    write_whole(path, safetensors.torch.save(tensors, {METADATA: content}))
    if path.name == NAME:
        write_notes(path.parent, stock.blocks)


def describe_steps(model: nn.Module) -> dict[str, Any]:
    """What a file of :func:`save_steps` says beside its tensors.

    A checkpoint of a whole model that has it can be read by
    :func:`load_steps`, see :data:`METADATA`.

    Raises:
        ValueError: See :func:`save_steps`.
    """
    return _header(Stock(model))


def step_keys(model: nn.Module) -> set[str]:
    """Keys in a model's state dict of all that its steps have learned."""
    steps: Modules = {}
    for name, module in model.named_modules():
        if isinstance(module, ResidualStep):
            steps[name] = module
    return {*_tensors(steps)}


def _header(stock: Stock, named: Iterable[str] = ()) -> dict[str, Any]:
    """What a file says of a model, and of modules that were named."""
    if not stock.blocks:
        raise ValueError(
            f'{stock.classes[""]} has no steps to save; call insert_steps '
            f'first'
        )
    return dict(
        format_version=FORMAT, blocks=stock.blocks, modules_to_save=[*named]
    )


def _learned(stock: Stock, named: Modules) -> Modules:
    """The modules whose tensors are in a file, by their names."""
    modules: Modules = {}
    for attentions in stock.attentions.values():
        modules |= attentions
    for name, module in named.items():
        modules[name] = in_use(module)
    return modules


def _tensors(modules: Modules) -> dict[str, Any]:
    """Tensors of modules, by the keys that a state dict gives them."""
    tensors = {}
    for name, module in modules.items():
        for key, t in tensors_of(module).items():
            tensors[f'{name}.{key}'] = t
    return tensors


def load_steps(model: nn.Module, path: str | Path) -> list[str]:
    """Put the steps of a file into a model and load their weights.

    Steps that the model has already get the weights; blocks that had been
    removed are removed. The whole file is checked before anything is changed.
    A file of a model loads onto a part of it, such as the model without its
    head, and the other way round; PEFT's wrapper makes no difference.

    Args:
        model (nn.Module): The model without steps, or with the same. In DDP
            or FSDP2 it needs to have them.
        path (str | Path): The file of :func:`save_steps`, or its folder; or a
            checkpoint that Lightning's ``StepsCallback`` was there to see.

    Returns:
        list[str]: Names of the blocks with steps.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is damaged, of another format or of another model; it
            is left as it was.
        RuntimeError: The model is in DDP or FSDP and lacks the steps.
    """
    path = Path(path) / NAME if Path(path).is_dir() else Path(path)
    read = _read if path.suffix == '.safetensors' else _read_checkpoint
    try:
        saved = read(path)
        stock = Stock(model)
        saved = _rename(saved, stock.classes)
        _check_blocks(saved.blocks, stock.blocks)
        _check_widths(saved, stock)
        steps = build_steps(saved.blocks, stock)
        stand_ins = build_stand_ins(saved.blocks, stock)
        named = find_modules_to_save(stock.modules, saved.modules_to_save)
        learned = _learned(stock, named)
        _check_tensors(saved.tensors, _tensors(learned))
    except ValueError as error:
        raise ValueError(f'{path}: {error}') from error
    if steps or stand_ins:
        check_unsharded(stock.names)
    for name in steps:
        put_in(stock.modules[name], steps[name])
    exchange(stock.names, stand_ins)
    for name, module in learned.items():
        state_dict = {}
        for key, own in tensors_of(module).items():
            state_dict[key] = _like(saved.tensors[f'{name}.{key}'], own)
        module.load_state_dict(state_dict, strict=False)
    loaded = {
        name: stock.attentions[name].values()
        for name in stock.classes
        if 'steps' in saved.blocks.get(name, ())
    }
    if loaded:
        inform(f'{describe(loaded)}; from {path}')
    return list(loaded)


@dataclass
class _Saved:
    """What a file holds.

    Attributes:
        blocks (Blocks): See :data:`~.stock.Blocks`.
        modules_to_save (list[str]): Names of further modules.
        tensors (dict[str, Tensor]): What all these have learned, by its keys
            in a state dict.
    """

    blocks: Blocks
    modules_to_save: list[str]
    tensors: dict[str, Tensor]


def _read(path: Path) -> _Saved:
    """Read a file of :func:`save_steps`, if it is whole."""
    try:
        with safe_open(path, 'pt') as file:
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}
    except SafetensorError as error:
        raise ValueError(
            f'this is no whole file of save_steps ({error}); {WHOLE}'
        ) from error
    header = _parse_header(metadata.get(METADATA))
    digest = header.pop('digest', None)
    if digest != _digest(header, tensors):
        raise ValueError('it was changed after save_steps had written it')
    return _Saved(header['blocks'], header['modules_to_save'], tensors)


def _read_checkpoint(path: Path) -> _Saved:
    """Read the steps in a trainer's checkpoint that says where they are."""
    try:
        checkpoint = torch.load(path, 'cpu', weights_only=True)
    except OSError:
        raise
    except Exception as error:  # whatever a reader makes of other bytes
        raise ValueError(
            f'it is damaged, or holds more than tensors, numbers and text '
            f'({type(error).__name__}); load the file of steps that was '
            f'written beside it'
        ) from error
    if not isinstance(checkpoint, dict):
        checkpoint = {}
    header = _parse_header(checkpoint.get(METADATA))
    prefix = f'{header["network"]}.'.lstrip('.')
    weights = {}
    for key, t in checkpoint['state_dict'].items():
        if key.startswith(prefix):
            weights[_without_wrappers(key.removeprefix(prefix))] = t
    tensors = {}
    for name, block in header['blocks'].items():
        for step in block.get('steps', ()):
            attention = f'{name}.{step}.attention.'
            keys = [key for key in weights if key.startswith(attention)]
            if not keys:
                raise ValueError(
                    f'its weights have no {attention}*, as where PEFT is '
                    f'around the network; load the file of steps that was '
                    f'written beside it'
                )
            for key in keys:
                if not key.endswith(f'.{KEY}'):
                    tensors[key] = weights[key]
    return _Saved(header['blocks'], header['modules_to_save'], tensors)


def _parse_header(text: Any) -> dict[str, Any]:
    """What :func:`describe_steps` has said of a model.

    Raises:
        ValueError: There is no such text, or it is of another format.
    """
    if text is None:
        raise ValueError(
            f'it does not say where its steps stand, as files of save_steps '
            f"and checkpoints of Lightning's StepsCallback do; {WHOLE}"
        )
    header = json.loads(text)
    version = header.get('format_version')
    if version != FORMAT:
        raise ValueError(
            f'it has format {version} and format {FORMAT} is read; load it by '
            f'the mmstepnet that wrote it, and save the whole model: {WHOLE}'
        )
    return header


def _digest(header: dict, tensors: dict[str, Tensor]) -> str:
    """SHA-256 of all that a file holds."""
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for key, t in sorted(tensors.items()):
        digest.update(f'{key} {t.dtype} {tuple(t.shape)}'.encode())
        digest.update(t.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _without_wrappers(key: str) -> str:
    """Key of a state dict, without the names of wrappers."""
    return '.'.join(
        part
        for part in key.split('.')
        if part not in ('_orig_mod', '_checkpoint_wrapped_module')
    )


def _rename(saved: _Saved, classes: dict[str, str]) -> _Saved:
    """Name all that a file holds as a model names it.

    Args:
        saved (_Saved): The file. Its network has, or is, a part of the model.
        classes (dict[str, str]): Classes of the model's modules by name.
    """
    old, new = _prefixes(saved.blocks, classes)

    def rename(table: dict[str, Any]) -> dict[str, Any]:
        return {
            new + name.removeprefix(old): value
            for name, value in table.items()
            if name.startswith(old)
        }

    named = list(rename(dict.fromkeys(saved.modules_to_save)))
    if len(named) < len(saved.modules_to_save):
        LOGGER.warning(
            'Of %s only %s is loaded: the model has no other.',
            saved.modules_to_save,
            named,
        )
    return _Saved(rename(saved.blocks), named, rename(saved.tensors))


def _prefixes(blocks: Blocks, classes: dict[str, str]) -> tuple[str, str]:
    """A file's prefix of the names of its blocks, and the model's.

    One of them is ``''``, or both.
    """
    first = next(iter(blocks))
    fitting = set()
    lacking = list(blocks)  # of where the fewest do
    for name in classes:
        old = new = ''
        if f'.{name}'.endswith(f'.{first}'):
            new = name.removesuffix(first)
        elif f'.{first}'.endswith(f'.{name}'):
            old = first.removesuffix(name)
        else:
            continue
        unlike = [
            saved
            for saved, block in blocks.items()
            if not saved.startswith(old)
            or classes.get(new + saved.removeprefix(old)) != block['cls']
        ]
        if unlike:
            lacking = min(lacking, unlike, key=len)
        else:
            fitting.add((old, new))
    if len(fitting) > 1:
        raise ValueError(
            f'it is of a network with the block {first} '
            f'({blocks[first]["cls"]}); the model has such blocks '
            f'{len(fitting)} times, and must have them once'
        )
    if not fitting:
        raise ValueError(
            f'it is of a network with the block {lacking[0]} '
            f'({blocks[lacking[0]]["cls"]}), and the model has no block of '
            f'that name and class; load it onto a network of this kind'
        )
    return fitting.pop()


def _check_blocks(blocks: Blocks, own: Blocks) -> None:
    """See that a file agrees with all that was changed in a model.

    Args:
        blocks (Blocks): Those of the file, by the model's names.
        own (Blocks): Those of the model.
    """
    for name in own:
        if name not in blocks:
            raise ValueError(
                f'it does not know {name}, which was changed in the model; '
                f'load it onto a model without changes'
            )
        wanted = blocks[name].get('steps')
        present = own[name].get('steps', 'none, because it was removed')
        if wanted is not None and wanted != present:
            raise ValueError(
                f'the attentions of {name} are {wanted} in the file and '
                f'{present} in the model; load it onto a model without changes'
            )
    for name, block in blocks.items():
        for record in block.get('steps', {}).values():
            if record['type'] not in ATTENTIONS:
                raise ValueError(
                    f'the attention of {name} is of the type '
                    f'{record["type"]!r}; register that class in ATTENTIONS'
                )


def _check_widths(saved: _Saved, stock: Stock) -> None:
    """See that the blocks of a model are as wide as those of a file.

    The number of channels is not in the record of an attention: it shows in
    the place of its step, or in the shapes of its tensors.
    """
    differing = []
    for name, block in saved.blocks.items():
        module = stock.modules[name]
        own: list[Any] = [
            a.channels for a in stock.attentions.get(name, {}).values()
        ]
        here = own[0] if own else width_here(module)
        if 'steps' not in block or here is None:
            continue
        step, record = next(iter(block['steps'].items()))
        if block['places']:
            there = block['places'][0][-1]
            sizes = own or {n for p in module.parameters() for n in p.shape}
            is_same = there in sizes
        else:
            prefix = f'{name}.{step}.attention.'
            shapes = {
                key.removeprefix(prefix): t.shape
                for key, t in saved.tensors.items()
                if key.startswith(prefix)
            }
            is_same = fits(record, here, shapes)
            there = width_of(record, shapes)
        if not is_same and there is not None:
            differing.append(
                f'{name} has {there} channels in the file, {here} here'
            )
    if differing:
        first, *others = differing
        count = f', the first of {len(differing)} blocks that differ'
        raise ValueError(
            f'it is of another model: {first}{count if others else ""}'
        )


def _check_tensors(given: dict[str, Tensor], own: dict[str, Any]) -> None:
    """See that a file's tensors can be loaded into those of a model."""
    difference = explain_difference(given, own)
    if difference:
        raise ValueError(f'it is of another model: {difference}')
    if any(t.is_meta for t in own.values()):
        raise ValueError(
            'the model is on the meta device and has no memory; load its '
            'weights first'
        )


def _whole(t: Any) -> Tensor:
    """All of a tensor of which FSDP2 keeps a part in each process."""
    return t.full_tensor() if hasattr(t, 'full_tensor') else t


def _like(t: Tensor, own: Any) -> Tensor:
    """Distribute a tensor as another one is."""
    if not hasattr(own, 'full_tensor'):
        return t
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(t.to(own.device), own.device_mesh, own.placements)


def read_weights(path: Path) -> dict[str, Tensor]:
    """Tensors of a file of safetensors or of ``torch.save``, on the CPU.

    No code in it is run. A checkpoint of a trainer may keep them under any
    key, best under one of :data:`CHECKPOINT_KEYS`.

    Raises:
        ValueError: It holds no dict, or tensors of the same names under
            several keys, such as the weights of a training and their average.
    """
    if path.suffix == '.safetensors':
        return safetensors.torch.load_file(path)
    content: Any = torch.load(path, map_location='cpu', weights_only=True)
    if not isinstance(content, dict):
        raise ValueError(
            f'{path} holds a {type(content).__name__}, expected a state dict'
        )
    names = {}
    for key, value in content.items():
        if isinstance(value, Mapping):
            found = _names_of_tensors(value)
            if found:
                names[key] = found
    usual = [key for key in names if key in CHECKPOINT_KEYS]
    if not usual:  # parameters have names such as conv1.weight
        usual = [key for key in names if any('.' in n for n in names[key])]
    if not usual and not _names_of_tensors(content):
        usual = list(names)
    # An average counts its updates, too.
    rivals = [key for key in names if usual and names[key] >= names[usual[0]]]
    if len(usual) > 1 or len(rivals) > 1:
        keys = usual if len(usual) > 1 else rivals
        raise ValueError(
            f'{path} has weights under {", ".join(map(str, keys))}; save '
            f'those that you want in a file of their own, as by torch.save('
            f'torch.load({str(path)!r}, weights_only=True)[{keys[0]!r}], '
            f"'weights.pt')"
        )
    return content[usual[0]] if usual else content


def _names_of_tensors(value: Mapping) -> set[str]:
    """Names of the tensors in a mapping, without a wrapper's prefix."""
    return {
        str(key).removeprefix('module.')
        for key, t in value.items()
        if isinstance(t, Tensor)
    }


def explain_difference(
    given: Mapping[str, Tensor], own: Mapping[str, Tensor]
) -> str:
    """How tensors of a file differ from those of a model, in a sentence.

    Args:
        given (Mapping[str, Tensor]): Those of the file.
        own (Mapping[str, Tensor]): Those of the model.

    Returns:
        str: Counts of the tensors that are missing in the file, unknown to
        the model or of another shape, with examples; ``''`` if there are
        none.
    """
    missing = [key for key in own if key not in given]
    unknown = [key for key in given if key not in own]
    reshaped = [
        f'{key} is {_form(given[key])} in the file and {_form(own[key])} in '
        f'the model'
        for key in own
        if key in given and not _fits(given[key], own[key])
    ]
    parts = []
    for examples, what in (
        (missing, 'missing in the file'),
        (unknown, 'unknown to the model'),
        (reshaped, 'of another shape'),
    ):
        if examples:
            count = len(examples)
            tensors = '1 tensor is' if count == 1 else f'{count} tensors are'
            shown = ', '.join(examples[:2]) + ', …' * (count > 2)
            parts.append(f'{tensors} {what} ({shown})')
    return ', '.join(parts)


def _fits(given: Tensor, own: Tensor) -> bool:
    """Whether a tensor can be loaded into another one."""
    return (
        given.shape == own.shape
        and given.is_floating_point() == own.is_floating_point()
    )


def _form(t: Tensor) -> str:
    return f'{tuple(t.shape)} of {t.dtype}'
