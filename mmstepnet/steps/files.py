"""Steps in a file of their own, which goes on top of any copy of the model.

The file is one of safetensors. Its tensors are those of the attentions, BN
statistics included, and of the modules that were named. Its metadata has, as
JSON, the version of the format and for each block its class, the types and
arguments of its attentions and the places of its steps.
"""

import copy
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import torch.nn as nn
from safetensors import SafetensorError, safe_open
from torch import Tensor

from mmstepnet.attentions.base import ATTENTIONS
from mmstepnet.attentions.record import KEY, Recorded
from mmstepnet.files import write_whole

from .branch import BranchStep, Place, Spot
from .finding.wrappers import unwrap
from .fused_blocks import FusedBlock, is_fusable, state_width
from .insert import build, put_in
from .modules import check_module_names, find_module, modules_by_name, steps_of

FORMAT = 2
"""Version of the format."""

NAME = 'steps.safetensors'
METADATA = 'mmstepnet'


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
    names = check_module_names(modules_to_save)
    modules = modules_by_name(model)
    blocks, saved = steps_to_save(modules)
    for name in names:
        saved[name] = find_module(modules, name, 'modules_to_save names')
    tensors = _gather(model, saved)
    if tensors is None:
        return
    about = dict(format_version=FORMAT, blocks=blocks, modules_to_save=names)
    path = Path(path)
    if path.is_dir() or path.suffix != '.safetensors':
        path = path / NAME
    write_whole(path, safetensors.torch.save(
        tensors, {METADATA: json.dumps(about, sort_keys=True)}))


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
    for name, block in modules.items():
        for key, step in _steps(block).items():
            about = blocks.setdefault(name, dict(
                cls=_class_name(block), steps={}, places=[]))
            about['steps'][key] = _record(f'{name}.{key}', step.attention)
            if isinstance(step, BranchStep):
                about['places'].append(step.place)
            saved[f'{name}.{key}.attention'] = step.attention
    if not blocks:
        raise ValueError(f'{type(modules[""]).__name__} has no steps to '
                         f'save; call insert_steps first')
    return blocks, saved


def load_steps(model: nn.Module, path: str | Path) -> list[str]:
    """Put the steps of a file into a model and load their weights.

    Steps that the model has already get the weights. The whole file is
    checked before anything is changed. A file of a model loads onto a part of
    it, such as the model without its head or without PEFT's wrapper, and the
    other way round.

    Args:
        model (nn.Module): The model without steps, or with the same. In a
            wrapper (DDP, FSDP, compiled) it needs to have them.
        path (str | Path): The file of :func:`save_steps`, or its folder;
            ``hf://USER/REPO`` is the ``steps.safetensors`` of a repository,
            by huggingface_hub.

    Returns:
        list[str]: Names of the blocks.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is damaged, of another format or of another model; it
            is left as it was.
    """
    if str(path).startswith('hf://'):
        from huggingface_hub import hf_hub_download
        path = hf_hub_download(str(path).removeprefix('hf://'), NAME)
    path = Path(path) / NAME if Path(path).is_dir() else Path(path)
    modules = modules_by_name(model)
    file = _File(path, modules)
    others = [name for name, block in modules.items()
              if _steps(block) and name not in file.blocks]
    if others:
        raise ValueError(f'{path} knows nothing of the steps in '
                         f'{", ".join(others[:3])}; call remove_steps(model) '
                         f'first')
    ready, targets = [], {}
    for name, about in file.blocks.items():
        gates = {key: step.attention
                 for key, step in _steps(modules[name]).items()}
        if not gates:
            places, gates = file.build(name, modules[name], about)
            ready.append((modules[name], places, list(gates.values())))
        elif about['steps'].keys() != gates.keys() or any(
                about['steps'][key] | dict(init_step=None)
                != _record(key, gate) | dict(init_step=None)
                for key, gate in gates.items()):
            raise ValueError(f'{path}: {name} has other attentions here than '
                             f'{about["steps"]}')
        targets.update({f'{name}.{key}.attention': gate
                        for key, gate in gates.items()})
    if ready and unwrap(model) is not model:
        raise ValueError(
            f'the model is in a {type(model).__name__}, which would not see '
            f'new parameters; load the steps before you wrap it')
    for name in file.modules_to_save:
        targets[name] = find_module(modules, name, f'{path} holds')
    if not _is_sharded(model):
        file.load({name: copy.deepcopy(m) for name, m in targets.items()})
    for block, places, gates in ready:
        put_in(block, places, gates)
    for name, about in file.blocks.items():
        for key, record in about['steps'].items():
            targets[f'{name}.{key}.attention'].set_init_step(
                record['init_step'])
    if _is_sharded(model):
        _scatter(model, file.tensors, targets)
    else:
        file.load(targets)
    return [name for name in modules if name in file.blocks]


class _File:
    """What a file holds, by the names that the modules have in a model."""

    def __init__(self, path: Path, modules: dict[str, nn.Module]):
        if not path.is_file():
            raise FileNotFoundError(f'there is no file {path}')
        self.path = path
        try:
            with safe_open(path, 'pt') as file:
                tensors = {name: file.get_tensor(name)
                           for name in file.keys()}
                about = json.loads((file.metadata() or {})[METADATA])
            version, self.blocks = about['format_version'], about['blocks']
            self.modules_to_save = check_module_names(
                about['modules_to_save'])
        except (SafetensorError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f'{path} is no whole file of save_steps '
                             f'({error!r})') from error
        if version != FORMAT:
            raise ValueError(
                f'{path} has format {version} and format {FORMAT} is read; '
                f'load it with the mmstepnet that wrote it, and save the state '
                f'dict of the model, which insert_steps and load_state_dict '
                f'read')
        self.tensors = {}
        for name, t in tensors.items():
            if t.is_floating_point() and not t.isfinite().all():
                raise ValueError(f'{path}: {name} holds NaN or infinity')
            self.tensors[name] = t
        self._rename(modules)

    def _rename(self, modules: dict[str, nn.Module]) -> None:
        """Take off, or put on, what comes before all names of one model."""
        if not self.blocks or any(name in modules for name in self.blocks):
            missing = [n for n in self.blocks if n not in modules]
        else:
            first = next(iter(self.blocks))
            pairs = [(name.removesuffix(first), '') for name in modules
                     if name.endswith(f'.{first}')]
            pairs += [('', f'{prefix}.') for k in range(1, first.count('.') + 1)
                      if (prefix := '.'.join(first.split('.')[:k]))
                      and first.removeprefix(f'{prefix}.') in modules]
            fits = [(new, old) for new, old in pairs if all(
                new + n.removeprefix(old) in modules for n in self.blocks)]
            missing = [] if fits else list(self.blocks)
            for new, old in fits[:1]:
                self.blocks, self.tensors = (
                    {new + name.removeprefix(old): value
                     for name, value in table.items()}
                    for table in (self.blocks, self.tensors))
                self.modules_to_save = [
                    new + n.removeprefix(old) for n in self.modules_to_save]
        if missing or not self.blocks:
            raise ValueError(
                f'{self.path} has steps for {", ".join(missing[:3])}, and the '
                f'model has no such module' if missing else
                f'{self.path} holds no steps')

    def build(self, name: str, block: nn.Module, about: dict) -> tuple:
        """Places and attentions of a block that has none."""
        try:
            if about['cls'] != _class_name(block):
                raise ValueError(f'it was a {about["cls"]} and is a '
                                 f'{_class_name(block)}')
            places = [Place(step, Spot(*state), Spot(*branch), *axes)
                      for step, state, branch, *axes in about['places']]
            records = about['steps']
            if places:
                sizes = {n for p in block.parameters() for n in p.shape}
                for place in places:
                    axes = {place.batch, place.channels}
                    if len(axes) < 2 or not axes < set(range(place.dims)) or (
                            place.width not in sizes):
                        raise ValueError(f'{place} fits no state of it')
                    for spot in place.state, place.branch:
                        block.get_submodule(spot.module)
            elif not isinstance(block, FusedBlock) and not is_fusable(block):
                raise ValueError('it is no block whose tail can be fused')
            widths = {place.name: (place.width, place.has_map)
                      for place in places} or dict(
                step=(state_width(block), True))
            if widths.keys() != records.keys():
                raise ValueError(f'it takes other steps than {list(records)}')
            for record in records.values():
                if record['type'] not in ATTENTIONS:
                    raise ValueError(
                        f'{record["type"]!r} is not registered; import the '
                        f'module that registers it first')
            return places or None, {
                key: build(records[key], name, block, *widths[key])
                for key in widths}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f'{self.path}: {name} ({type(block).__name__}): '
                             f'{error}') from error

    def load(self, targets: dict[str, nn.Module]) -> None:
        """Load each module its tensors, all of which must belong to one."""
        left = dict(self.tensors)
        for name in sorted(targets, key=len, reverse=True):  # steps first
            own = {key.removeprefix(f'{name}.'): left.pop(key)
                   for key in list(left) if key.startswith(f'{name}.')}
            wanted = targets[name].state_dict()
            try:
                missing, further = targets[name].load_state_dict(own, False)
            except RuntimeError as error:  # of other shapes
                raise ValueError(f'{self.path} does not fit {name}: {error}'
                                 ) from error
            missing = [key for key in missing if not key.endswith(KEY)
                       and '.attention.' not in key]
            if missing or further:
                raise ValueError(f'{self.path} does not fit {name}: it lacks '
                                 f'{missing} and has {further}')
            for key, t in own.items():
                if t.is_floating_point() != wanted[key].is_floating_point():
                    raise ValueError(f'{self.path}: {name}.{key} is of '
                                     f'{t.dtype} and not of '
                                     f'{wanted[key].dtype}')
        if left:
            raise ValueError(f'{self.path} holds {", ".join(list(left)[:3])}, '
                             f'which belong to no step of it')


def read_weights(path: Path, model: Any = None) -> dict[str, Tensor]:
    """Tensors of a file of safetensors or of ``torch.save``, on the CPU.

    No code in it is run.
    """
    if path.suffix == '.safetensors':
        return safetensors.torch.load_file(path)
    state = torch.load(path, map_location='cpu', weights_only=True)
    return state.get('state_dict', state)


def _record(name: str, attention: nn.Module) -> dict:
    if not isinstance(attention, Recorded) or (
            attention.recorded_type not in ATTENTIONS):
        raise ValueError(
            f'{name} has a {type(attention).__name__}, which is not '
            f'registered in mmstepnet.attentions.ATTENTIONS and could not be '
            f'built again (save the steps before fold, which changes them)')
    return attention.record()


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


def _scatter(model: nn.Module, tensors: dict[str, Tensor],
             targets: dict[str, nn.Module]) -> None:
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        set_model_state_dict,
    )
    # In the place of records that are missing it puts what is none.
    records = {f'{name}.{key}': t for name, gate in targets.items()
               for key, t in gate.state_dict().items() if key.endswith(KEY)}
    set_model_state_dict(model, {**tensors, **records}, options=(
        StateDictOptions(full_state_dict=True, strict=False)))


def _is_sharded(model: nn.Module) -> bool:
    """Whether FSDP holds parts of the weights."""
    return any(type(t).__name__ in ('DTensor', 'FlatParameter')
               for t in model.parameters()) or any(
        type(m).__name__ == 'FullyShardedDataParallel'
        for m in model.modules())


def _steps(block: nn.Module) -> dict[str, Any]:
    """Steps of a block that have an attention, by their names."""
    found = set(steps_of(block))
    return {key: unwrap(step) for key, step in block.named_children()
            if unwrap(step) in found and unwrap(step).attention is not None}


def _class_name(block: nn.Module) -> str:
    cls = block.host if isinstance(block, FusedBlock) else type(block)
    return cls.__qualname__
