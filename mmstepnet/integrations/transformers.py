"""transformers' Trainer: calibrate new gates, log stiffness, save the steps.

transformers writes the steps into its checkpoints and does not read them
again: :func:`mmstepnet.load_steps` does, from the file beside them.
"""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from mmstepnet.checks import check_installed
from mmstepnet.steps.calibration import calibrate

from .trainers import Options, randomness_kept, save_beside, stiffness_of

check_installed(__name__, 'transformers', install='transformers')

from transformers import TrainerCallback  # noqa: E402


class StepsCallback(Options, TrainerCallback):
    """Calibrates, measures and saves the steps of a model.

    Before the first epoch, gates' BNs that have no statistics yet get them
    from training batches (:func:`mmstepnet.calibrate`). At each evaluation it
    adds ``eval_tns`` and ``eval_nsi`` to the metrics and to the state's log,
    with the prefix that the evaluation has.
    With each checkpoint it writes ``steps.safetensors`` into its folder; give
    ``save=False`` in a hyperparameter search, which does not tell it the
    folder of a trial.

    Args:
        calibration_batches (int): Training batches for the gates' statistics;
            0 for none. Defaults to 50.
        measured_batches (int): Evaluation batches a process for TNS; 0 for
            none. Defaults to 8.
        save (bool): Whether to write the steps. Defaults to True.
        forward (Callable, optional): ``forward(model, batch)`` runs the model
            on a batch. None calls ``model(**batch)``. Defaults to None.
    """

    def on_train_begin(self, args, state, control, *, model, train_dataloader,
                       **kwargs) -> None:
        """Calibrate gates that have seen no data."""
        if self.calibration_batches:
            with randomness_kept(train_dataloader):
                calibrate(model, _batches(
                    train_dataloader, self.calibration_batches, args.device),
                    forward=self.forward)

    def on_evaluate(self, args, state, control, *, metrics, model,
                    eval_dataloader, **kwargs) -> None:
        """Add TNS and the mean NSI to the metrics."""
        if self.measured_batches:
            # Of one data set among several, 'eval_NAME'.
            prefix = next((key.removesuffix('_runtime') for key in metrics
                           if key.endswith('_runtime')), 'eval')
            with randomness_kept(eval_dataloader):
                measured = stiffness_of(model, _batches(
                    eval_dataloader, self.measured_batches, args.device),
                    self.forward, args.device)
            found = {f'{prefix}_{name}': v for name, v in measured.items()}
            metrics.update(found)
            state.log_history.append(
                dict(found, epoch=state.epoch, step=state.global_step))

    def on_save(self, args, state, control, *, model, **kwargs) -> None:
        """Write the steps into the checkpoint's folder."""
        if self.save:
            save_beside(model, Path(args.output_dir) /
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
