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
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import safetensors.torch
import torch
import torch.distributed as dist
import torch.nn as nn
from safetensors import SafetensorError, safe_open
from torch import Tensor

from mmstepnet.attentions import ATTENTIONS, build_attention
from mmstepnet.attentions.record import KEY, Recorded
from mmstepnet.files import write_whole
from mmstepnet.generated import host_of
from mmstepnet.tracing.wrappers import unwrap

from .branch import BranchStep, Place, Spot
from .fused_blocks import is_fusable
from .insert import build, put_in
from .modules import check_unsharded, find_modules_to_save, modules_by_name
from .removal import RemovedBlock, exchange, stage_asked_for, stand_in
from .residual import ResidualStep

LOGGER = logging.getLogger(__name__)

FORMAT = 2
"""Version of the format."""

NAME = 'steps.safetensors'
METADATA = 'mmstepnet'

WHOLE = (
    'steps in the weights of a whole model are read by insert_steps, '
    'with the arguments of then, and load_state_dict'
)


def save_steps(
    model: nn.Module, path: str | Path, modules_to_save: Iterable[str] = ()
) -> None:
    """Write the steps of a model, and nothing else, to a file.

    The names of blocks that :func:`remove_blocks` took out are in it, too.
    In DDP and FSDP2 each process calls it, and the first one writes.

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
    modules = modules_by_name(_base(model))
    kept = find_modules_to_save(modules, modules_to_save)
    blocks, saved = _steps_to_save(modules)
    saved |= {name: _in_use(module) for name, module in kept.items()}
    tensors = {
        f'{name}.{key}': _whole(t).detach().cpu().contiguous().clone()
        for name, module in saved.items()
        for key, t in _tensors(module).items()
    }
    if dist.is_available() and dist.is_initialized() and dist.get_rank():
        return
    about = _about(blocks, kept)
    content = json.dumps(about | dict(digest=_digest(about, tensors)))
    path = Path(path)
    if path.suffix != '.safetensors':
        path = path / NAME
    write_whole(path, safetensors.torch.save(tensors, {METADATA: content}))


def describe_steps(model: nn.Module) -> dict[str, Any]:
    """What a file of :func:`save_steps` says beside its tensors.

    A checkpoint of a whole model that has it can be read by
    :func:`load_steps`, see :data:`METADATA`.

    Raises:
        ValueError: See :func:`save_steps`.
    """
    blocks, _ = _steps_to_save(modules_by_name(_base(model)))
    return _about(blocks)


def step_keys(model: nn.Module) -> set[str]:
    """Keys in a model's state dict of all that its steps have learned."""
    return {
        f'{name}.{key}'
        for name, module in model.named_modules()
        if isinstance(module, ResidualStep)
        for key in _tensors(module)
    }


def _about(
    blocks: dict[str, dict], kept: Iterable[str] = ()
) -> dict[str, Any]:
    return dict(format_version=FORMAT, blocks=blocks, modules_to_save=[*kept])


def _steps_to_save(
    modules: dict[str, nn.Module],
) -> tuple[dict[str, dict], dict[str, nn.Module]]:
    """What a file says of the blocks of a model, and their attentions."""
    blocks: dict[str, dict] = {}
    saved: dict[str, nn.Module] = {}
    for name, block in modules.items():
        cls, gates = host_of(block).__qualname__, _gates(block)
        if isinstance(block, RemovedBlock):
            blocks[name] = dict(removed=[block.size, block.is_relu], cls=cls)
        elif gates:
            saved |= _by_name(name, gates)
            blocks[name] = dict(
                places=[
                    step.place
                    for step in map(_in_use, block.children())
                    if isinstance(step, BranchStep)
                ],
                steps={key: _record(gate) for key, gate in gates.items()},
                cls=cls,
            )
    if not blocks:
        raise ValueError(
            f'{type(modules[""]).__name__} has no steps to '
            f'save; call insert_steps first'
        )
    return blocks, saved


def _by_name(block: str, gates: dict[str, Any]) -> dict[str, nn.Module]:
    return {f'{block}.{key}.attention': gate for key, gate in gates.items()}


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
    try:
        read = _read if path.suffix == '.safetensors' else _read_checkpoint
        return _load(_base(model), *read(path))
    except (
        AttributeError,
        KeyError,
        StopIteration,
        TypeError,
        ValueError,
    ) as error:
        raise ValueError(f'{path}: {error}') from error


def _load(
    model: nn.Module, about: dict, tensors: dict[str, Tensor]
) -> list[str]:
    """Check what a file says, and then change the model."""
    modules = modules_by_name(model)
    rename = _rename(about['blocks'], modules)
    blocks, tensors = rename(about['blocks']), rename(tensors)
    named = rename(dict.fromkeys(about['modules_to_save']))
    if len(named) < len(about['modules_to_save']):
        LOGGER.warning(
            'Of %s only %s is loaded: the model has no other.',
            about['modules_to_save'],
            list(named),
        )
    others = [
        name
        for name, block in modules.items()
        if name not in blocks
        and (_gates(block) or isinstance(block, RemovedBlock))
    ]
    if others:
        raise ValueError(
            f'it knows nothing of what was changed in '
            f'{others[0]}; load it onto the model without'
        )
    targets = {
        name: _in_use(module)
        for name, module in find_modules_to_save(modules, named).items()
    }
    removed = {
        name: stand_in(modules[name], *saved['removed'])
        for name, saved in blocks.items()
        if 'removed' in saved and not isinstance(modules[name], RemovedBlock)
    }
    for name in removed:
        if stage := stage_asked_for(modules, name):
            raise ValueError(
                f'it lacks {name}, which makes what out_features '
                f'names {stage!r}; leave that out there'
            )
    stepped = [name for name in modules if 'steps' in blocks.get(name, ())]
    new = []
    for name in stepped:
        saved, gates = blocks[name], _gates(modules[name])
        if not gates:
            steps = _build(name, modules[name], **saved)
            new.append((modules[name], steps.values()))
            gates = {key: gate for key, (_, gate) in steps.items()}
        found = {key: _record(gate) for key, gate in gates.items()}
        if found != saved['steps']:
            raise ValueError(
                f'{name} has other attentions here, {found}, '
                f'than {saved["steps"]}'
            )
        targets |= _by_name(name, gates)
    if new or removed:
        check_unsharded(model)
    _check_tensors(tensors, targets)
    for block, steps in new:
        put_in(block, steps)
    exchange(model, removed)
    for name, target in targets.items():
        target.load_state_dict(
            {
                key: _like(tensors[f'{name}.{key}'], own)
                for key, own in _tensors(target).items()
            },
            strict=False,
        )
    return stepped


def _read(path: Path) -> tuple[dict, dict[str, Tensor]]:
    """What a file says, and its tensors, if it is whole."""
    try:
        with safe_open(path, 'pt') as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}
            about = json.loads((file.metadata() or {})[METADATA])
        digest = about.pop('digest', None)
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f'this is no whole file of save_steps ({error!r}); {WHOLE}'
        ) from error
    _check_format(about)
    if digest != _digest(about, tensors):
        raise ValueError('it was changed after save_steps had written it')
    return about, tensors


def _read_checkpoint(path: Path) -> tuple[dict, dict[str, Tensor]]:
    """What a trainer's checkpoint says of its steps, and their tensors."""
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
    if not isinstance(checkpoint, dict) or METADATA not in checkpoint:
        raise ValueError(
            f'it does not say what its steps are, as checkpoints of '
            f"Lightning's StepsCallback do; {WHOLE}"
        )
    about = json.loads(checkpoint[METADATA])
    _check_format(about)
    prefix = f'{about.pop("network")}.'.lstrip('.')
    gates = [
        f'{name}.{key}.attention.'
        for name, block in about['blocks'].items()
        for key in block.get('steps', ())
    ]
    tensors = {
        _inside(key.removeprefix(prefix)): t
        for key, t in checkpoint['state_dict'].items()
        if key.startswith(prefix)
    }
    for gate in gates:
        if not any(key.startswith(gate) for key in tensors):
            raise ValueError(
                f'its weights have no {gate}*, as where PEFT is around the '
                f'network; load the file of steps that was written beside it'
            )
    return about, {
        key: t
        for key, t in tensors.items()
        if key.startswith(tuple(gates)) and not key.endswith(f'.{KEY}')
    }


def _inside(key: str) -> str:
    """Key of a state dict, without the names of wrappers."""
    return '.'.join(
        part
        for part in key.split('.')
        if part not in ('_orig_mod', '_checkpoint_wrapped_module')
    )


def _check_format(about: dict) -> None:
    version = about['format_version']
    if version != FORMAT:
        raise ValueError(
            f'it has format {version} and format {FORMAT} is read; load it by '
            f'the mmstepnet that wrote it, and save the whole model: {WHOLE}'
        )


def _digest(about: dict, tensors: dict[str, Tensor]) -> str:
    """SHA-256 of all that a file holds."""
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for name, t in sorted(tensors.items()):
        digest.update(f'{name} {t.dtype} {tuple(t.shape)}'.encode())
        digest.update(t.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _rename(
    blocks: dict[str, dict], modules: dict[str, nn.Module]
) -> Callable[[dict], dict]:
    """How what a file names is named in a model.

    The one has, or is, a part of the other.
    """
    first = next(iter(blocks))
    pairs = {
        *(
            ('', name.removesuffix(first))
            for name in modules
            if f'.{name}'.endswith(f'.{first}')
        ),
        *(
            (first.removesuffix(name), '')
            for name in modules
            if f'.{first}'.endswith(f'.{name}')
        ),
    }
    fitting = [
        (old, new)
        for old, new in pairs
        if all(
            name.startswith(old)
            and host_of(modules.get(new + name.removeprefix(old))).__qualname__
            == saved['cls']
            for name, saved in blocks.items()
        )
    ]
    if len(fitting) != 1:
        raise ValueError(
            f'it is of a network with the block {first} '
            f'({blocks[first]["cls"]}); the model has such blocks '
            f'{len(fitting)} times, and must have them once'
        )
    ((old, new),) = fitting
    return lambda table: {
        new + name.removeprefix(old): value
        for name, value in table.items()
        if name.startswith(old)
    }


def _build(
    name: str, block: nn.Module, places: list, steps: dict, **_: str
) -> dict[str, tuple[Place | None, Any]]:
    """Places and attentions of the steps of a block that has none."""
    made = [
        Place(step, Spot(*state), Spot(*branch), *axes)
        for step, state, branch, *axes in places
    ]
    for place in made:
        block.get_submodule(place.state.module)
        block.get_submodule(place.branch.module)
    sizes = {size for p in block.parameters() for size in p.shape}
    if not (made or is_fusable(block)) or any(
        place.width not in sizes for place in made
    ):
        raise ValueError(f'{name} is built otherwise than what was saved')
    standing = {place.name: place for place in made} or dict(step=None)
    return {
        key: (place, build(steps[key], name, block, place))
        for key, place in standing.items()
    }


def _check_tensors(
    tensors: dict[str, Tensor], targets: dict[str, nn.Module]
) -> None:
    """See that tensors are those of the modules, of the same shapes."""
    wanted = {
        f'{name}.{key}': t
        for name, module in targets.items()
        for key, t in _tensors(module).items()
    }
    difference = explain_difference(tensors, wanted)
    if difference:
        raise ValueError(f'it is of another model: {difference}')
    if any(t.is_meta for t in wanted.values()):
        raise ValueError(
            'the model is on the meta device and has no '
            'memory; load its weights first'
        )


def _tensors(module: nn.Module) -> dict[str, Any]:
    """State dict of a module, without the records of gates."""
    records = {
        f'{name}.{KEY}'.lstrip('.')
        for name, m in module.named_modules()
        if isinstance(m, Recorded)
    }
    return {
        key: t for key, t in module.state_dict().items() if key not in records
    }


def read_weights(path: Path) -> dict[str, Tensor]:
    """Tensors of a file of safetensors or of ``torch.save``, on the CPU.

    No code in it is run. A checkpoint of a trainer may keep them under any
    key, beside tensors of other kinds: a state dict is known by names such as
    ``conv1.weight``.

    Raises:
        ValueError: It holds no dict, or state dicts under several keys, such
            as the weights of a training and their average.
    """
    if path.suffix == '.safetensors':
        return safetensors.torch.load_file(path)
    content: Any = torch.load(path, map_location='cpu', weights_only=True)
    if not isinstance(content, dict):
        raise ValueError(
            f'{path} holds a {type(content).__name__}, expected a state dict'
        )
    if _is_state_dict(content):
        return content
    keys = [key for key in content if _is_state_dict(content[key])]
    if len(keys) > 1:
        raise ValueError(
            f'{path} has weights under {" and ".join(map(str, keys))}; save '
            f'those that you want in a file of their own, as by torch.save('
            f"torch.load({path.name!r})[{keys[-1]!r}], 'weights.pt')"
        )
    return content[keys[0]] if keys else content


def _is_state_dict(value: Any) -> bool:
    """Whether something holds tensors of modules that stand in a network.

    States of optimizers and schedulers, statistics of averages and settings
    have no such names.
    """
    return isinstance(value, Mapping) and any(
        isinstance(t, Tensor) and '.' in str(key) for key, t in value.items()
    )


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


def _base(model: nn.Module) -> nn.Module:
    """The model that PEFT has wrapped; another one as it is."""
    peft: Any = unwrap(model)
    return peft.get_base_model() if hasattr(peft, 'get_base_model') else model


def _in_use(module: nn.Module) -> nn.Module:
    """Of a module that PEFT trains a copy of, that copy."""
    held: Any = unwrap(module)
    copies = getattr(held, 'modules_to_save', None)
    if isinstance(copies, nn.ModuleDict):
        active = held.active_adapters
        return copies[active[0]] if active else held.original_module
    return held


def _gates(block: nn.Module) -> dict[str, Any]:
    """Attentions of a block's steps, by the names of these."""
    if isinstance(block, nn.ModuleDict) or _in_use(block) is not block:
        return {}  # a wrapper of a step is no block
    steps = {key: _in_use(child) for key, child in block.named_children()}
    return {
        key: _in_use(step.attention)
        for key, step in steps.items()
        if isinstance(step, ResidualStep) and step.attention is not None
    }


def _record(gate: Any) -> dict[str, Any]:
    """Type and arguments of an attention, of which it can be built again."""
    if isinstance(gate, Recorded) and gate.recorded_type in ATTENTIONS:
        record, channels = gate.record(), cast(Any, gate).channels
        with torch.device('meta'):
            fresh = build_attention(record, channels)
        shapes, wanted = (
            {key: t.shape for key, t in _tensors(m).items()}
            for m in (gate, fresh)
        )
        if shapes == wanted:
            return record
    raise ValueError(
        f'a {type(gate).__name__} could not be built again from its type and '
        f'arguments: register its class in ATTENTIONS, save before fold, make '
        f'pruning permanent, and in FSDP1 save inside summon_full_params'
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
