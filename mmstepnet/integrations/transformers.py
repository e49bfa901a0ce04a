"""transformers' Trainer: calibrate new gates, log stiffness, save the steps.

transformers writes the steps into its checkpoints and does not read them
again: :func:`mmstepnet.load_steps` does, from the file beside them.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.nn as nn

from mmstepnet.checks import check_installed
from mmstepnet.steps.calibration import calibrate
from mmstepnet.steps.files import save_steps

from .trainers import check_has_steps, randomness_kept, stiffness_of

check_installed(__name__, 'transformers', install='transformers')

from transformers import (  # noqa: E402
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)


class StepsCallback(TrainerCallback):
    """Calibrates, measures and saves the steps of a model.

    Before the first epoch, gates' BNs that have no statistics yet get them
    from training batches (:func:`mmstepnet.calibrate`). At each evaluation it
    adds ``eval_tns`` and ``eval_nsi`` to the metrics and to the state's log.
    With each checkpoint it writes ``steps.safetensors`` into its folder.

    Args:
        calibration_batches (int): Training batches for the gates' statistics;
            0 for none. Defaults to 50.
        measured_batches (int): Evaluation batches a process for TNS; 0 for
            none. Defaults to 8.
        save (bool): Whether to write the steps. Defaults to True.
        forward (Callable, optional): ``forward(model, batch)`` runs the model
            on a batch. None calls ``model(**batch)``. Defaults to None.
    """

    def __init__(self, *, calibration_batches: int = 50,
                 measured_batches: int = 8, save: bool = True,
                 forward: Callable[[nn.Module, Any], Any] | None = None):
        self.calibration_batches = calibration_batches
        self.measured_batches = measured_batches
        self.save = save
        self.forward = forward

    def on_train_begin(self, args: TrainingArguments, state: TrainerState,
                       control: TrainerControl, *, model: nn.Module,
                       train_dataloader: Any, **kwargs) -> None:
        """Calibrate gates that have seen no data."""
        if self.save:
            check_has_steps(model)
            if state.is_hyper_param_search:
                raise ValueError(
                    'StepsCallback: a hyperparameter search does not tell a '
                    'callback the folder of its trial; give save=False, and '
                    'read a checkpoint by insert_steps and load_state_dict')
        if self.calibration_batches:
            with randomness_kept():
                calibrate(model, _batches(
                    train_dataloader, self.calibration_batches, args.device),
                    forward=self.forward)

    def on_evaluate(self, args: TrainingArguments, state: TrainerState,
                    control: TrainerControl, *, metrics: dict[str, float],
                    model: nn.Module, eval_dataloader: Any, **kwargs) -> None:
        """Add TNS and the mean NSI to the metrics."""
        if self.measured_batches:
            found = {f'eval_{name}': value for name, value in stiffness_of(
                model, _batches(
                    eval_dataloader, self.measured_batches, args.device),
                self.forward, args.device).items()}
            metrics.update(found)
            state.log_history.append(
                dict(found, epoch=state.epoch, step=state.global_step))

    def on_save(self, args: TrainingArguments, state: TrainerState,
                control: TrainerControl, *, model: nn.Module,
                **kwargs) -> None:
        """Write the steps into the checkpoint's folder."""
        if self.save:
            save_steps(model, Path(str(args.output_dir)) /
                       f'checkpoint-{state.global_step}')


def _batches(loader: Any, count: int,
             device: torch.device) -> Iterator[dict]:
    """The first batches of a loader, on the device.

    Leaving accelerate's own loader half-way would leave its count of
    gradients' accumulation there.
    """
    for batch in islice(getattr(loader, 'base_dataloader', loader), count):
        yield {key: value.to(device) if isinstance(value, torch.Tensor)
               else value for key, value in batch.items()}
