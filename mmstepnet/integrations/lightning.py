"""Lightning: calibrate new gates, log stiffness, save the steps."""

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch.nn as nn

from mmstepnet.checks import check_installed
from mmstepnet.steps.calibration import calibrate
from mmstepnet.steps.examples import run_batch
from mmstepnet.steps.files import save_steps

from .trainers import check_has_steps, randomness_kept, stiffness_of

check_installed(__name__, 'lightning', install='lightning')

import lightning  # noqa: E402


class StepsCallback(lightning.Callback):
    """Calibrates, measures and saves the steps of a network.

    Before the first epoch, gates' BNs that have no statistics yet get them
    from training batches (:func:`mmstepnet.calibrate`). After each validation
    it logs ``tns`` and ``nsi`` of validation images. With each checkpoint it
    writes the steps beside it, ``epoch=1-step=44.steps.safetensors``, for
    :func:`mmstepnet.load_steps`.

    Args:
        network (str): Name of the module's part that is measured, calibrated
            and saved. ``''`` is all of it. Defaults to ``'network'``.
        calibration_batches (int): Training batches for the gates' statistics;
            0 for none. Defaults to 50.
        measured_batches (int): Validation batches a process for TNS; 0 for
            none. Defaults to 8.
        save (bool): Whether to write the steps. Defaults to True.
        forward (Callable, optional): ``forward(network, batch)`` runs the
            network on a batch. None calls it with the first element of a
            tuple or list, the images, and otherwise as
            :func:`mmstepnet.calibrate` does. Defaults to None.
    """

    def __init__(self, network: str = 'network', *,
                 calibration_batches: int = 50, measured_batches: int = 8,
                 save: bool = True,
                 forward: Callable[[nn.Module, Any], Any] | None = None):
        self.network = network
        self.calibration_batches = calibration_batches
        self.measured_batches = measured_batches
        self.save = save
        self.forward = forward or _run_inputs

    def on_train_start(self, trainer: lightning.Trainer,
                       pl_module: lightning.LightningModule) -> None:
        """Calibrate gates that have seen no data."""
        if self.save:
            check_has_steps(pl_module.get_submodule(self.network))
            folder = _folder(trainer)
            if '://' in folder:
                raise ValueError(
                    f'StepsCallback: steps are written into local folders, '
                    f'got checkpoints in {folder}; give save=False, and read '
                    f'a checkpoint by insert_steps and load_state_dict')
        if self.calibration_batches:
            with randomness_kept():
                calibrate(
                    pl_module.get_submodule(self.network),
                    _batches(trainer, trainer.train_dataloader,
                             self.calibration_batches), forward=self.forward)

    def on_validation_epoch_end(self, trainer: lightning.Trainer,
                                pl_module: lightning.LightningModule) -> None:
        """Log TNS and the mean NSI."""
        if self.measured_batches and not trainer.sanity_checking:
            pl_module.log_dict(stiffness_of(
                pl_module.get_submodule(self.network),
                _batches(trainer, trainer.val_dataloaders,
                         self.measured_batches),
                self.forward, pl_module.device))

    def on_save_checkpoint(self, trainer: lightning.Trainer,
                           pl_module: lightning.LightningModule,
                           checkpoint: dict[str, Any]) -> None:
        """Write the steps where the checkpoint goes."""
        if self.save:
            name = (f'epoch={trainer.current_epoch}-step='
                    f'{trainer.global_step}.steps.safetensors')
            save_steps(pl_module.get_submodule(self.network),
                       Path(_folder(trainer)) / name)


def _folder(trainer: lightning.Trainer) -> str:
    """Where checkpoints go; where that is remote, its URL."""
    callback = trainer.checkpoint_callback
    return str(getattr(callback, 'dirpath', None) or trainer.default_root_dir)


def _run_inputs(network: nn.Module, batch: Any) -> Any:
    return run_batch(
        network, batch[0] if isinstance(batch, (tuple, list)) else batch)


def _batches(trainer: lightning.Trainer, loaders: Any,
             count: int) -> Iterator[Any]:
    """The first batches of a loader or of several, as a step gets them."""
    module = trainer.lightning_module
    for k, loader in enumerate(
            loaders if isinstance(loaders, (list, tuple)) else [loaders]):
        for batch in islice(loader, count):
            batch = trainer.precision_plugin.convert_input(batch)
            batch = module._on_before_batch_transfer(batch, dataloader_idx=k)
            yield trainer.strategy.batch_to_device(batch, dataloader_idx=k)
