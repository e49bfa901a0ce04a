"""transformers' Trainer and folders: calibrate, log stiffness, save, load.

transformers writes steps and metrics into its folders, and ``from_pretrained``
does not read them again: :func:`load_folder` does.
"""

import json
import re
from collections.abc import Iterable, Iterator
from inspect import signature
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MethodType
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import PreTrainedModel, TrainerCallback

from mmstepnet.steps.calibration import calibrate
from mmstepnet.steps.examples import call_of
from mmstepnet.steps.files import NAME, WHOLE, load_steps, read_weights
from mmstepnet.steps.stock import Stock

from .trainers import (
    LOGGER,
    Options,
    randomness_kept,
    save_beside,
    stiffness_of,
)

WEIGHTS = 'model*.safetensors', 'pytorch_model*.bin'
ADAPTERS = 'adapter_model.safetensors', 'adapter_model.bin'
"""Files of transformers and of PEFT in a folder."""

OURS = re.compile(
    r'(.*\.)?((\w+_)?step(_\d+)?(?=\.attention\.)|metric(?=\.hidden\.))'
)
"""The name of a step or a metric, at the start of a key."""


class StepsCallback(Options, TrainerCallback):
    """Calibrates, measures and saves the steps of a model.

    Before the first epoch, gates' BNs that have no statistics yet get them
    from training batches (:func:`mmstepnet.calibrate`). To what an evaluation
    logs it adds ``eval_tns`` and ``eval_nsi``, with the prefix that the
    evaluation has, so that they are printed, and stand in the state's history
    and the metrics; ``metric_for_best_model`` and ``EarlyStoppingCallback``
    may name them. Where stages have two blocks, TNS is 0 by definition and is
    left out. Callbacks before it, such as those of ``report_to``, get what is
    logged without them: give ``report_to='none'`` and the tracker's callback
    behind this one. From the training on, whatever saves the
    model, such as a checkpoint or ``trainer.save_model``, also writes
    ``steps.safetensors`` into its folder, which :func:`load_folder` reads. A
    model that FSDP2 shards gets it with each checkpoint alone. What cannot be
    measured or written is a warning, and the training goes on, with the
    random numbers that it would have had.

    transformers 5 writes ViT, BEiT, DINOv2 and Swin under other names than
    their modules have. In 5.24 its own ``resume_from_checkpoint`` and
    ``load_best_model_at_end`` do not translate these, and lose weights, with
    steps and without: of a ViT of two layers 8 names of 40 agree. There,
    call ``from_pretrained`` and :func:`load_folder` with the best folder.

    Args:
        calibration_batches (int): Training batches for the gates' statistics;
            0 for none, as where the data are a stream that can be read once,
            or draw from a generator of their own. Defaults to 50.
        measured_batches (int): Evaluation batches a process for TNS; 0 for
            none. Defaults to 8.
        save (bool): Whether to write the steps. Defaults to True.
        forward (Callable, optional): ``forward(model, batch)`` runs the model
            on a batch. None calls ``model(**batch)``. Defaults to None.
    """

    def __init__(self, **options: Any):
        super().__init__(**options)
        self.is_evaluated = False
        self.measured: dict[str, float] = {}

    def on_train_begin(
        self, args, state, control, *, model, train_dataloader, **kwargs
    ) -> None:
        """Calibrate gates that have seen no data; have the steps saved."""
        if self.save and _saves_itself(model):
            model.save_pretrained = MethodType(save_pretrained, model)
        if self.calibration_batches:
            with randomness_kept(train_dataloader):
                calibrate(
                    model,
                    _batches(
                        train_dataloader, self.calibration_batches, args.device
                    ),
                    forward=self.forward,
                )

    def on_prediction_step(self, args, state, control, **kwargs) -> None:
        """Know that what is logged next is an evaluation."""
        self.is_evaluated = True

    def on_predict(self, args, state, control, **kwargs) -> None:
        """A prediction logs nothing."""
        self.is_evaluated = False

    def on_log(
        self, args, state, control, *, logs, model, eval_dataloader, **kwargs
    ) -> None:
        """Add TNS and the mean NSI to what an evaluation logs."""
        if not (self.is_evaluated and self.measured_batches):
            return
        self.is_evaluated = False
        # Of one data set among several, 'eval_NAME'.
        prefix = next(
            (
                key.removesuffix('_runtime')
                for key in logs
                if key.endswith('_runtime')
            ),
            'eval',
        )
        with randomness_kept(eval_dataloader):
            found = stiffness_of(
                model,
                _batches(eval_dataloader, self.measured_batches, args.device),
                self.forward,
                args.device,
            )
        self.measured = {f'{prefix}_{name}': v for name, v in found.items()}
        logs.update(self.measured)
        state.log_history[-1].update(self.measured)

    def on_evaluate(self, args, state, control, *, metrics, **kwargs) -> None:
        """Have them in the metrics, also where a trainer logs a copy."""
        metrics.update(self.measured)
        self.measured = {}

    def on_save(self, args, state, control, *, model, **kwargs) -> None:
        """Write the steps into the checkpoint's folder."""
        if self.save and not _saves_itself(model):
            save_beside(
                model,
                Path(args.output_dir) / f'checkpoint-{state.global_step}',
            )


def save_pretrained(
    model: Any, save_directory: str | Path, *args: Any, **kwargs: Any
) -> None:
    """Save a model as its class does, and its steps beside it.

    The steps are those of the weights that are saved, ``state_dict``, and no
    process but the main one writes them.
    """
    host = type(model).save_pretrained
    given = signature(host).bind(model, save_directory, *args, **kwargs)
    asked = {**given.kwargs, **given.arguments}
    weights = asked.get('state_dict')
    if weights is not None:
        weights = dict(weights)  # the host takes out what it has written
    host(model, save_directory, *args, **kwargs)
    if asked.get('is_main_process', True):
        save_beside(model, Path(save_directory), weights)


def _saves_itself(model: Any) -> bool:
    """Whether one process saves all of a model, without the others' help."""
    return hasattr(model, 'save_pretrained') and not any(
        hasattr(p, 'full_tensor') for p in model.parameters()
    )


def load_folder(model: Any, folder: str | Path) -> list[str]:
    """Put on a model what its folder holds beside the weights of its class.

    Steps, names of removed blocks and metrics of metric-attention, all of
    which ``from_pretrained`` leaves out. Of PEFT's adapter, whose weights are
    PEFT's to load, it puts in the steps that lie beside it, and sees that the
    model has what the adapter's weights need.

    Args:
        model (nn.Module): What ``from_pretrained`` made of the folder, or the
            base model of the adapter.
        folder (str | Path): The folder.

    Returns:
        list[str]: Names of the attentions with metrics, and of the blocks
        with steps. Where there are none, a warning tells.

    Raises:
        FileNotFoundError: There is no such folder.
        ValueError: The weights have steps or metrics, nothing says what they
            are, and the model has none there.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(
            f'there is no folder {folder}; of a repository of Hugging Face, '
            f'give the folder that huggingface_hub.snapshot_download returns'
        )
    if not holds_ours(folder):
        inner = sorted(p.name for p in folder.glob('*/') if holds_ours(p))
        LOGGER.warning(
            '%s holds no steps and no metrics, so the model stays as it is%s',
            folder,
            f'; there are some in {", ".join(inner)}' * bool(inner),
        )
        return []
    names = []
    about = _metric_attention(folder)
    if about:
        from .transformers_attention import load_metrics

        names += load_metrics(model, read_folder(folder), about)
    has_file = (folder / NAME).is_file()
    if has_file:
        names += load_steps(model, folder)
    needed = [
        _part(key).removeprefix('base_model.model.')
        for key in _keys_of_ours(folder, ADAPTERS)
    ]
    if lacking := _lacking(model, needed):
        raise ValueError(
            f'the adapter in {folder} needs {lacking}, which the model lacks; '
            f'before PeftModel.from_pretrained, put in what its base model '
            f"had: load_folder of the base's folder, or insert_steps and "
            f'add_metrics with the arguments of then'
        )
    keys = _keys_of_ours(folder, WEIGHTS)
    steps = [key for key in keys if not _part(key).endswith('metric')]
    metrics = [key for key in keys if _part(key).endswith('metric')]
    if not has_file and (lacking := _lacking(model, _parts_in(model, steps))):
        raise ValueError(
            f'{folder} has weights of {lacking}, which the model lacks, and '
            f'no {NAME} that says what they are; {WHOLE}'
        )
    if not about and (lacking := _lacking(model, _parts_in(model, metrics))):
        raise ValueError(
            f'{folder} has weights of {lacking}, which the model lacks, and '
            f'its config does not say of which attention; build the model as '
            f'it was, call add_metrics and load_state_dict'
        )
    return names


def holds_ours(folder: str | Path) -> bool:
    """Whether a folder has steps, metrics or names of removed blocks."""
    folder = Path(folder)
    return bool(
        (folder / NAME).is_file()
        or _metric_attention(folder)
        or _keys_of_ours(folder, WEIGHTS + ADAPTERS)
    )


def read_folder(folder: Path) -> dict[str, Tensor]:
    """All weights of a folder of ``save_pretrained``, by its own keys."""
    weights = {}
    for pattern in WEIGHTS:
        for path in folder.glob(pattern):
            weights |= read_weights(path)
    return weights


def names_in_files(model: Any, keys: Iterable[str]) -> list[str]:
    """Keys as save_pretrained writes them: some models keep older names."""
    keys = list(keys)
    with TemporaryDirectory() as folder:
        type(model).save_pretrained(
            model,
            folder,
            state_dict={key: torch.tensor([i]) for i, key in enumerate(keys)},
        )
        names = {int(t): name for name, t in read_folder(Path(folder)).items()}
    return [names[i] for i in range(len(keys))]


def _metric_attention(folder: Path) -> dict[str, Any] | None:
    """What :func:`add_metrics` has written into a folder's config."""
    path = folder / 'config.json'
    if not path.is_file():
        return None
    return json.loads(path.read_text('utf-8')).get('metric_attention')


def _keys_of_ours(folder: Path, patterns: Iterable[str]) -> list[str]:
    """A key of each step and each metric in a folder's files."""
    keys = []
    for pattern in patterns:
        for path in folder.glob(pattern):
            if path.suffix == '.bin':
                keys += torch.load(path, 'meta', weights_only=True, mmap=True)
            else:
                keys += safe_open(path, 'pt').keys()
    return list({_part(key): key for key in keys if _part(key)}.values())


def _part(key: str) -> str:
    """The name of the step or the metric that a key is of, or ``''``."""
    found = OURS.match(key)
    return found[0] if found else ''


def _parts_in(model: Any, keys: list[str]) -> list[str]:
    """Steps and metrics that a folder's keys are of, as a model names them."""
    if not keys or not isinstance(model, PreTrainedModel):
        return [*map(_part, keys)]
    ends = {OURS.sub(r'\2', key) for key in keys}
    own = [
        f'{name}.{end}'.lstrip('.')
        for name, _ in model.named_modules()
        for end in ends
    ]
    # The folder may be of the model with a head, or without.
    prefix = f'{model.base_model_prefix}.'
    names = {
        name.removeprefix(prefix): key
        for name, key in zip(names_in_files(model, own), own)
    }
    return [_part(names.get(key.removeprefix(prefix), key)) for key in keys]


def _lacking(model: Any, parts: list[str]) -> str:
    """The first parts that a model lacks, in words."""
    modules = Stock(model).modules
    lacking = [part for part in parts if part not in modules]
    return ', '.join(lacking[:2]) + ', …' * (len(lacking) > 2)


def _batches(loader: Any, count: int, device: torch.device) -> Iterator[Any]:
    """The first batches of a loader, on the device.

    Leaving accelerate's own loader half-way would leave its count of
    gradients' accumulation there.
    """
    for batch in islice(getattr(loader, 'base_dataloader', loader), count):
        args, kwargs = call_of(batch, device=str(device))
        yield args or kwargs
