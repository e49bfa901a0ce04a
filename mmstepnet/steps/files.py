"""Steps in a file of their own, which goes on top of any copy of the model.

The file is one of safetensors. Its tensors are those of the attentions, BN
statistics included, and of the modules that were named. Its metadata has, as
JSON, the version of the format and for each block its class, the types and
arguments of its attentions and, where the block takes its steps in its own
``forward``, where.
"""

import json
import re
from argparse import Namespace
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile, is_zipfile

import safetensors.torch
import torch
import torch.nn as nn
from safetensors import SafetensorError, safe_open
from torch import Tensor

from mmstepnet.attentions.base import ATTENTIONS
from mmstepnet.attentions.record import (
    KEY,
    Recorded,
    check_init_step,
    read_record,
)
from mmstepnet.files import write_whole

from ..blocks import describe
from .finding.wrappers import WRAPPERS, unwrap
from .insert import build
from .own_forward import (
    OwnForwardBlock,
    Place,
    Plan,
    check_names,
    put_planned_steps,
)
from .places import (
    check_module_names,
    find_in_parts,
    find_module,
    modules_by_name,
)
from .residual import ResidualStep
from .step_block import StepBlock, check_forward

FORMAT = 1
"""Version of the format, raised when an older reader would go wrong."""

NAME = 'steps.safetensors'
METADATA = 'mmstepnet'

WHOLE = 'model.safetensors', 'pytorch_model.bin', 'pytorch_model.pth'
"""Files of a folder that may hold a whole model."""


@dataclass
class _Block:
    """What a file says of a block.

    Attributes:
        cls (str, optional): Name of its class; a state dict does not say.
        steps (dict[str, dict]): Record of the attention of each step.
        plans (tuple, optional): Where its own ``forward`` takes them.
    """

    cls: str | None
    steps: dict[str, dict]
    plans: tuple[Plan, Plan] | None = None


@dataclass
class _File:
    """What was read, by the names that the modules have in the model."""

    path: Path
    blocks: dict[str, _Block]
    tensors: dict[str, Tensor]
    modules_to_save: list[str] = field(default_factory=list)

    def of(self, prefix: str) -> dict[str, Tensor]:
        """Tensors of a module, by their names in it."""
        return {name.removeprefix(f'{prefix}.'): t
                for name, t in self.tensors.items()
                if name.startswith(f'{prefix}.')}


def save_steps(model: nn.Module, path: str | Path,
               modules_to_save: Iterable[str] = ()) -> None:
    """Write the steps of a model, and nothing else, to a file.

    Under FSDP each process calls it; the first one writes.

    Args:
        model (nn.Module): A model with steps, in a wrapper or not.
        path (str | Path): The file, ``*.safetensors``, or a folder, which
            gets a ``steps.safetensors``.
        modules_to_save (Iterable[str]): Names of further modules whose
            weights belong to it, such as a head that was trained.

    Raises:
        TypeError: ``modules_to_save`` is no list of names.
        ValueError: There are no steps, a module does not exist, or an
            attention is not registered, as after :func:`mmstepnet.fold`.

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
    modules_to_save = check_module_names(modules_to_save)
    modules = modules_by_name(model)
    blocks, saved = steps_to_save(modules)
    for name in modules_to_save:
        saved[name] = find_module(modules, name, 'modules_to_save names')
    tensors = _gather(model, saved)
    if tensors is None:
        return
    metadata = json.dumps(
        dict(format_version=FORMAT, blocks=blocks,
             modules_to_save=modules_to_save), sort_keys=True)
    path = Path(path)
    if path.is_dir() or path.suffix != '.safetensors':
        path = path / NAME
    write_whole(path, safetensors.torch.save(tensors, {METADATA: metadata}))


def steps_to_save(modules: dict[str, nn.Module]
                  ) -> tuple[dict[str, dict], dict[str, nn.Module]]:
    """What a file says of the blocks of a model, and their attentions.

    Args:
        modules (dict[str, nn.Module]): Its modules by name.

    Raises:
        ValueError: There are no steps, or an attention is not registered.
    """
    blocks: dict[str, dict] = {}
    saved: dict[str, nn.Module] = {}
    for name, module in modules.items():
        attentions = _attentions(module)
        if not attentions:
            continue
        about: dict[str, Any] = {
            'steps': {key: _record(f'{name}.{key}', attention)
                      for key, attention in attentions.items()},
            'class': _class_name(module)}
        if isinstance(module, OwnForwardBlock):
            about['plans'] = [asdict(plan) for plan in module._plans]
        blocks[name] = about
        saved.update({f'{name}.{key}.attention': attention
                      for key, attention in attentions.items()})
    if not blocks:
        raise ValueError(f'{type(modules[""]).__name__} has no steps to '
                         f'save; call insert_steps first')
    return blocks, saved


def load_steps(model: nn.Module, path: str | Path, *,
               example: Any = None) -> list[str]:
    """Put the steps of a file into a model and load their weights.

    The file is one of :func:`save_steps`, or the weights of a whole model
    that were saved with steps in it, of which only these are taken: load the
    rest as ever. Steps that the model has already get the weights. The whole
    file is checked before anything is changed.

    Args:
        model (nn.Module): The model without steps, or with the same. In a
            wrapper (DDP, FSDP, compiled) it needs to have them.
        path (str | Path): The file, or its folder; ``hf://USER/REPO`` is the
            ``steps.safetensors`` of a repository, by huggingface_hub.
        example (Any): What the model is called with, as for
            :func:`mmstepnet.insert_steps`. Only a whole model's weights may
            need it. Defaults to None.

    Returns:
        list[str]: Names of the blocks.

    Raises:
        FileNotFoundError: There is no such file.
        ImportError: ``hf://`` without huggingface_hub.
        ValueError: It is damaged, of a newer format or of another model, or
            the model is on the meta device; it is left as it was.
    """
    modules = modules_by_name(model)
    if any(p.is_meta for p in model.parameters()):
        raise ValueError(f'{type(model).__name__} is on the meta device, '
                         f'which holds no weights; load its own first')
    if str(path).startswith('hf://'):
        from huggingface_hub import hf_hub_download
        path = hf_hub_download(str(path).removeprefix('hf://'), NAME)
    file = _read(Path(path), unwrap(model), modules)
    ready = _prepare(model, modules, file, example)
    steps = tuple(f'{name}.{key}.attention.' for name, block in
                  file.blocks.items() for key in block.steps)
    for name in file.modules_to_save:
        _compare(file, name, find_module(modules, name, f'{file.path} holds'),
                 steps)
    claimed = (*steps, *(f'{name}.' for name in file.modules_to_save))
    for key, t in file.tensors.items():
        if key.startswith(steps) and not t.double().isfinite().all():
            raise ValueError(f'{file.path}: {key} holds NaN or infinity')
    further = [key for key in file.tensors if not key.startswith(claimed)]
    if further:
        raise ValueError(f'{file.path} holds {_some(further)}, which belong '
                         f'to no step of it')
    for block, plans, attentions in ready:
        put_planned_steps(block, plans, attentions)
    _load(model, modules, file)
    return [name for name in modules if name in file.blocks]


def _prepare(model: nn.Module, modules: dict[str, nn.Module], file: _File,
             example: Any) -> list[tuple]:
    """Check all blocks; those that need steps, with what they get."""
    ready, missing = [], []
    if not file.blocks:
        raise ValueError(f'{file.path} holds no steps')
    for name, saved in file.blocks.items():
        for record in saved.steps.values():
            if record['type'] not in ATTENTIONS:
                raise ValueError(
                    f'{file.path}: the attention {record["type"]!r} of {name} '
                    f'is not registered in this process. Import the module '
                    f'that registers it first')
        block = find_module(modules, name, f'{file.path} has steps for')
        if saved.cls not in (None, _class_name(block)):
            raise ValueError(f'{file.path}: {name} is a {_class_name(block)} '
                             f'here and was a {saved.cls}')
        attentions = _attentions(block)
        if attentions:
            found = {key: _record(f'{name}.{key}', attention)
                     for key, attention in attentions.items()}
            if _settings(found) != _settings(saved.steps):
                raise ValueError(
                    f'{file.path} has {saved.steps} for {name}, where '
                    f'{found} stand; call remove_steps(model) first')
            for key, attention in attentions.items():
                _compare(file, f'{name}.{key}.attention', attention)
        else:
            missing.append(name)
    others = [name for name, module in modules.items()
              if name not in file.blocks and _attentions(module)]
    if others:
        raise ValueError(f'{file.path} knows nothing of the steps in '
                         f'{_some(others)}; call remove_steps(model) first')
    if missing and unwrap(model) is not model:
        raise ValueError(
            f'{_some(missing)} have no steps, and the model is in a '
            f'{type(model).__name__}, which would not see new parameters; '
            f'load the steps first and wrap the model then')
    plans_of: dict | None = None
    for name in missing:
        block, saved = modules[name], file.blocks[name]
        plans: Any = saved.plans
        known: Any = None
        if plans is None and not isinstance(block, StepBlock):
            known = getattr(block, 'known', None) or _describe(block)
            if known is None and plans_of is None:
                plans_of = {
                    prefix + name: plan for prefix, *_, (plans, _, _) in
                    find_in_parts(model, example)
                    for name, plan in plans.items()}
                if not plans_of:
                    raise ValueError(
                        f'{file.path} does not say where {name}, a '
                        f'{type(block).__name__}, takes its steps, which is '
                        f'found by running the model: give example=')
            plans = None if known else (plans_of or {}).get(name)
        places = known.steps if known else plans[0].places if plans else ()
        if {place.name for place in places} != set(saved.steps):
            raise ValueError(f'{file.path}: {name} would take its steps in '
                             f'{[p.name for p in places]} here and took them '
                             f'in {list(saved.steps)}')
        if plans is not None:
            check_names(name, block, plans[0])
            _check_widths(file, name, block, places)
        check_forward(block)
        attentions = []
        for place in places:
            width = place.channels(block) if known else place.width
            record = saved.steps[place.name]
            try:
                attention = build(record, name, block, width, place.has_map)
            except (TypeError, ValueError) as error:
                raise ValueError(f'{file.path}: {name} cannot get {record}: '
                                 f'{error}') from error
            _compare(file, f'{name}.{place.name}.attention', attention)
            attentions.append(attention)
        ready.append((block, plans, attentions))
    return ready


def _check_widths(file: _File, name: str, block: nn.Module,
                  places: Iterable[Place]) -> None:
    """Refuse a block of another width than its plan was made for.

    What is added to the state comes out of one of its layers.
    """
    sizes = {size for p in block.parameters() for size in p.shape}
    for place in places:
        if place.width not in sizes:
            raise ValueError(
                f'{file.path}: {name} took a step of {place.width} channels, '
                f'and none of its layers has as many here')


def _describe(block: nn.Module) -> Any:
    try:
        return describe(type(block))
    except RuntimeError:  # another forward than the one that is described
        return None


def _load(model: nn.Module, modules: dict[str, nn.Module],
          file: _File) -> None:
    gates: dict[str, Any] = {}
    for name, block in file.blocks.items():
        attentions = _attentions(modules[name])
        for key, record in block.steps.items():
            attentions[key].set_init_step(record['init_step'])
            gates[f'{name}.{key}.attention'] = attentions[key]
    if _is_sharded(model):
        from torch.distributed.checkpoint.state_dict import (
            StateDictOptions,
            set_model_state_dict,
        )
        # In the place of records that are missing it puts what is none.
        records = {f'{name}.{key}': t for name, gate in gates.items()
                   for key, t in gate.state_dict().items()
                   if key.endswith(KEY)}
        set_model_state_dict(model, {**file.tensors, **records}, options=(
            StateDictOptions(full_state_dict=True, strict=False)))
        return
    for name, gate in gates.items():
        gate.load_state_dict(file.of(name))
    for name in file.modules_to_save:  # keys were compared; records are none
        modules[name].load_state_dict(file.of(name), strict=False)


def _read(path: Path, model: nn.Module,
          modules: dict[str, nn.Module]) -> _File:
    """What a file holds, its structure checked."""
    path = _within(path, (NAME, *WHOLE))
    tensors, metadata = _open(path)
    if METADATA not in metadata:
        return _from_whole(path, tensors, model, modules)
    try:
        about = json.loads(metadata[METADATA])
        version = about['format_version']
        if not isinstance(version, int) or version < 1:
            raise ValueError(f'format_version is {version!r}')
    except (KeyError, RecursionError, TypeError, ValueError) as error:
        raise _damaged(path, error) from error
    if version > FORMAT:
        raise ValueError(
            f'{path} has format {version}; this mmstepnet reads formats up '
            f'to {FORMAT}, take a newer one')
    try:
        blocks = {name: _Block(str(block['class']), {
            key: _checked(record) for key, record in block['steps'].items()},
            _plans(block['plans']) if 'plans' in block else None)
            for name, block in about['blocks'].items()}
        return _File(path, blocks, tensors,
                     check_module_names(about['modules_to_save']))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> ValueError:
    return ValueError(f'{path} is damaged: its metadata are not those of '
                      f'save_steps ({error!r})')


def _within(path: Path, names: Iterable[str]) -> Path:
    """The file itself, or the first of these that a folder has."""
    if path.is_dir():
        there = [path / name for name in names if (path / name).is_file()]
        if not there:
            raise FileNotFoundError(f'{path} has no weights: none of '
                                    f'{", ".join(names)}')
        path = there[0]
    if not path.is_file():
        raise FileNotFoundError(f'there is no file {path}')
    return path


def read_weights(path: Path, model: Any = None) -> dict[str, Tensor]:
    """Tensors of a file of safetensors or of ``torch.save``, on the CPU.

    Args:
        path (Path): The file, or a folder of ``save_pretrained``.
        model (nn.Module, optional): Whose modules' names the keys are to
            have, where transformers saves in those of older releases.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It holds no tensors, or more than that.
    """
    return _as_modules_are_named(model, _open(_within(path, WHOLE))[0])


def _open(path: Path) -> tuple[dict[str, Tensor], Mapping[str, str]]:
    """Tensors and metadata of a file, on the CPU; no code in it is run."""
    if path.suffix != '.safetensors':
        try:
            _check_unpacked(path)
            with _allowed():
                state = torch.load(path, map_location='cpu',
                                   weights_only=True)
        except Exception as error:
            text = ' '.join(re.sub(r'\x1b\[\d*m', '', str(error)).split())
            what = re.search(r'[Uu]nsupported (global|class|GLOBAL).*', text)
            raise ValueError(f'{path} cannot be read as weights: ' + (
                what[0][:200] if what else
                'it is no whole file of torch.save') + (
                    '. It has records of a training beside its weights; '
                    'tools/publish_model.py writes a file without' if
                    'mmengine' in text else '')) from error
        if isinstance(state, Mapping):
            state = state.get('state_dict', state)
        tensors = {k: t for k, t in state.items()
                   if isinstance(k, str) and isinstance(t, Tensor)
                   } if isinstance(state, Mapping) else {}
        if not tensors:
            raise ValueError(f'{path} holds no weights, but a '
                             f'{type(state).__name__} without tensors by '
                             f'their names')
        return tensors, {}
    try:
        with safe_open(path, 'pt') as file:
            names = list(file.keys())
            return ({name: file.get_tensor(name) for name in names},
                    file.metadata() or {})
    except (SafetensorError, OSError) as error:
        raise ValueError(f'{path} is no whole file of safetensors: '
                         f'{error}') from error


def _check_unpacked(path: Path) -> None:
    """Refuse an archive that would be unpacked; torch.save packs nothing.

    Raises:
        BadZipFile: It would.
    """
    if is_zipfile(path):
        with ZipFile(path) as archive:
            if sum(part.file_size for part in archive.infolist()
                   ) > path.stat().st_size:
                raise BadZipFile(f'{path} is packed')


def _allowed() -> AbstractContextManager:
    """Allow the options of a run, which timm saves beside its weights."""
    if hasattr(torch.serialization, 'safe_globals'):  # PyTorch 2.5
        return torch.serialization.safe_globals([Namespace])
    return nullcontext()


def _from_whole(path: Path, tensors: dict[str, Tensor], model: nn.Module,
                modules: dict[str, nn.Module]) -> _File:
    """The steps among the weights of a whole model."""
    end = f'.attention.{KEY}'
    tensors = {'.'.join(part for part in key.split('.')
                        if part == 'module' or part not in WRAPPERS): t
               for key, t in tensors.items()}
    tensors = _as_modules_are_named(model, tensors)
    records = {}
    for key, t in tensors.items():
        if key.endswith(end):
            try:
                records[key.removesuffix(end)] = _checked(read_record(t))
            except (TypeError, ValueError) as error:
                raise ValueError(f'{path}: {key}: {error}') from error
    if not records:
        has = any('step.attention.' in key for key in tensors)
        raise ValueError(
            f'{path} holds steps, but does not say which, as files of '
            f'mmstepnet 0.2: put them in by insert_steps(model, …) with the '
            f'arguments of then and load the file by load_state_dict' if has
            else f'{path} holds no steps; those that save_steps wrote, or a '
            f'whole model with steps in it, do')
    # Of what the model stood in: a wrapper, a detector, a model with a head.
    first = next(iter(records))
    prefixes = [first[:k] for k in range(len(first))
                if not k or first[k - 1] == '.']
    prefix = next((p for p in prefixes if all(
        name.startswith(p)
        and name.removeprefix(p).rpartition('.')[0] in modules
        for name in records)), '')
    blocks: dict[str, _Block] = {}
    kept = {}
    for name, record in records.items():
        block, _, key = name.removeprefix(prefix).rpartition('.')
        blocks.setdefault(block, _Block(None, {})).steps[key] = record
        kept.update({k.removeprefix(prefix): t for k, t in tensors.items()
                     if k.startswith(f'{name}.attention.')
                     and not k.endswith(KEY)})
    return _File(path, blocks, kept)


def _as_modules_are_named(model: Any,
                          tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Undo the names of older releases, in which transformers 5 saves."""
    if not hasattr(model, 'base_model_prefix'):  # none of transformers
        return tensors
    try:
        from transformers.conversion_mapping import (
            get_model_conversion_mapping,
        )
        from transformers.core_model_loading import (
            WeightConverter,
            rename_source_key,
        )
    except ImportError:  # before 5, names were not changed
        return tensors
    rules: list[Any] = get_model_conversion_mapping(model)
    converters = [r for r in rules if isinstance(r, WeightConverter)]
    renamings = [r for r in rules if not isinstance(r, WeightConverter)]
    return {rename_source_key(key, renamings, converters)[0]: t
            for key, t in tensors.items()}


def _plans(about: list[dict]) -> tuple[Plan, Plan]:
    """Plans of a block for evaluation and training, of the same steps."""
    plans = tuple(map(_plan, about))
    steps = {tuple((place.name, place.width) for place in plan.places)
             for plan in plans}
    if len(plans) != 2 or len(steps) > 1:
        raise ValueError('it lacks a block\'s two plans of the same steps')
    return plans


def _plan(about: dict) -> Plan:
    places = tuple(Place(**{
        **place, 'ordinals': tuple(map(int, place['ordinals'])),
        'state': tuple(map(int, place['state']))})
        for place in about['places'])
    return Plan(str(about['block']), int(about['additions']),
                bool(about['by_state']), places)


def _checked(record: dict) -> dict:
    """A record of an attention that can be built, if it is registered."""
    if not {'type', 'init_step'} <= record.keys() or not isinstance(
            record['type'], str):
        raise ValueError(f'it lacks a type or an init_step: {record}')
    check_init_step(record['type'], record['init_step'])
    return record


def _record(name: str, attention: nn.Module) -> dict:
    """Type and arguments of an attention.

    Raises:
        ValueError: It could not be built again from them.
    """
    if not isinstance(attention, Recorded) or (
            attention.recorded_type not in ATTENTIONS):
        raise ValueError(
            f'{name} has a {type(attention).__name__}, which is not '
            f'registered in mmstepnet.attentions.ATTENTIONS and could not be '
            f'built again (save the steps before fold, which changes them)')
    return attention.record()


def _settings(records: dict[str, dict]) -> dict[str, dict]:
    """Records without what may differ, where a step starts."""
    return {key: {**record, 'init_step': None}
            for key, record in records.items()}


def _compare(file: _File, name: str, module: nn.Module,
             without: tuple[str, ...] = ()) -> None:
    """Refuse tensors that differ from a module's in name, shape or kind.

    Those whose names begin as ``without`` says are compared elsewhere.
    """
    found, wanted = ({
        key: t for key, t in tensors.items()
        if not f'{name}.{key}'.startswith(without)
    } for tensors in (file.of(name), {
        key: t for key, t in module.state_dict().items()
        if not key.endswith(KEY)}))
    for key in sorted(found.keys() | wanted.keys()):
        has, wants = (tuple(t[key].shape) if key in t else none for t, none in
                      ((found, 'of nothing, it is missing'),
                       (wanted, 'none')))
        if has != wants:
            raise ValueError(f'{file.path}: {name}.{key} has the shape {has}, '
                             f'and the model wants {wants}')
        if wanted[key].is_floating_point() > found[key].is_floating_point():
            raise ValueError(f'{file.path}: {name}.{key} is of '
                             f'{found[key].dtype}, and the model wants '
                             f'{wanted[key].dtype}')


def _gather(model: nn.Module,
            saved: dict[str, nn.Module]) -> dict[str, Tensor] | None:
    """Whole tensors of modules; None in processes that need not write."""
    if _is_sharded(model):
        from torch.distributed.checkpoint.state_dict import (
            StateDictOptions,
            get_model_state_dict,
        )
        state: dict = get_model_state_dict(model, options=StateDictOptions(
            full_state_dict=True, cpu_offload=True))
        prefixes = tuple(f'{name}.' for name in saved)
        state = {k: t for k, t in state.items() if k.startswith(prefixes)}
    else:
        state = {f'{name}.{key}': t for name, module in saved.items()
                 for key, t in module.state_dict().items()}
    if (torch.distributed.is_available() and torch.distributed.is_initialized()
            and torch.distributed.get_rank()):
        return None
    return {key: t.detach().cpu().contiguous().clone()
            for key, t in state.items() if not key.endswith(KEY)}


def _is_sharded(model: nn.Module) -> bool:
    """Whether FSDP holds parts of the weights."""
    return any(type(t).__name__ in ('DTensor', 'FlatParameter')
               for t in model.parameters()) or any(
        type(m).__name__ == 'FullyShardedDataParallel'
        for m in model.modules())


def _attentions(module: nn.Module) -> dict[str, Any]:
    """Attentions of a block's own steps, in wrappers or not, by the steps."""
    steps = {key: unwrap(step) for key, step in module.named_children()}
    return {key: step.attention for key, step in steps.items()
            if isinstance(step, ResidualStep) and step.attention is not None}


def _class_name(block: nn.Module) -> str:
    cls = block.host if isinstance(block, StepBlock) else type(block)
    return cls.__qualname__


def _some(names: list[str]) -> str:
    return ', '.join(names[:3]) + f' and {len(names) - 3} more' * (
        len(names) > 3)
