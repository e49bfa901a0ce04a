"""transformers' Trainer and folders: calibrate, log stiffness, save, load.

transformers writes steps and metrics into its folders, and ``from_pretrained``
does not read them again: :func:`load_folder` does.
"""

import re
from collections.abc import Iterator
from inspect import signature
from itertools import islice
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from safetensors import safe_open
from transformers import TrainerCallback

from mmstepnet.steps import ResidualStep
from mmstepnet.steps.calibration import calibrate
from mmstepnet.steps.examples import call_of
from mmstepnet.steps.files import NAME, WHOLE, load_steps

from .trainers import Options, randomness_kept, save_beside, stiffness_of


class StepsCallback(Options, TrainerCallback):
    """Calibrates, measures and saves the steps of a model.

    Before the first epoch, gates' BNs that have no statistics yet get them
    from training batches (:func:`mmstepnet.calibrate`). At each evaluation it
    adds ``eval_tns`` and ``eval_nsi`` to the metrics and to the state's log,
    with the prefix that the evaluation has. From the training on, whatever
    saves the model, such as a checkpoint or ``trainer.save_model``, also
    writes ``steps.safetensors`` into its folder, which :func:`load_folder`
    reads. A model that FSDP2 shards gets it with each checkpoint alone.

    Args:
        calibration_batches (int): Training batches for the gates' statistics;
            0 for none. Defaults to 50.
        measured_batches (int): Evaluation batches a process for TNS; 0 for
            none. Defaults to 8.
        save (bool): Whether to write the steps. Defaults to True.
        forward (Callable, optional): ``forward(model, batch)`` runs the model
            on a batch. None calls ``model(**batch)``. Defaults to None.
    """

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

    def on_evaluate(
        self,
        args,
        state,
        control,
        *,
        metrics,
        model,
        eval_dataloader,
        **kwargs,
    ) -> None:
        """Add TNS and the mean NSI to the metrics."""
        if self.measured_batches:
            # Of one data set among several, 'eval_NAME'.
            prefix = next(
                (
                    key.removesuffix('_runtime')
                    for key in metrics
                    if key.endswith('_runtime')
                ),
                'eval',
            )
            with randomness_kept(eval_dataloader):
                measured = stiffness_of(
                    model,
                    _batches(
                        eval_dataloader, self.measured_batches, args.device
                    ),
                    self.forward,
                    args.device,
                )
            found = {f'{prefix}_{name}': v for name, v in measured.items()}
            metrics.update(found)
            state.log_history.append(
                dict(found, epoch=state.epoch, step=state.global_step)
            )

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
    which ``from_pretrained`` leaves out.

    Args:
        model (PreTrainedModel): What ``from_pretrained`` made of the folder.
        folder (str | Path): The folder.

    Returns:
        list[str]: Names of the attentions with metrics, and of the blocks
        with steps.

    Raises:
        ValueError: The weights have steps or metrics, and nothing says what
            they are.
    """
    names = []
    keys = [
        key
        for path in Path(folder).glob('model*.safetensors')
        for key in safe_open(path, 'pt').keys()
    ]
    for path in Path(folder).glob('pytorch_model*.bin'):
        keys += torch.load(path, 'meta', weights_only=True, mmap=True)
    if hasattr(model.config, 'metric_attention'):
        from .transformers_attention import load_metrics

        names = load_metrics(model, folder)
    elif metrics := [key for key in keys if '.metric.hidden.' in key]:
        raise ValueError(
            f'{folder} has metrics ({metrics[0]}), and its config does not '
            f'say of which attention; build the model as it was, call '
            f'add_metrics and load_state_dict'
        )
    if (Path(folder) / NAME).is_file():
        return names + load_steps(model, folder)
    steps = [
        key for key in keys if re.search(r'step(_\d+)?\.attention\.', key)
    ]
    if steps and not any(isinstance(m, ResidualStep) for m in model.modules()):
        raise ValueError(
            f'{folder} has steps ({steps[0]}) and no {NAME} that '
            f'says what they are; {WHOLE}'
        )
    return names


def _batches(loader: Any, count: int, device: torch.device) -> Iterator[Any]:
    """The first batches of a loader, on the device.

    Leaving accelerate's own loader half-way would leave its count of
    gradients' accumulation there.
    """
    for batch in islice(getattr(loader, 'base_dataloader', loader), count):
        args, kwargs = call_of(batch, device=str(device))
        yield args or kwargs
