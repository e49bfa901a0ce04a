"""Lightning: calibrate new gates, log stiffness, save the steps."""

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import lightning
import torch.nn as nn
from lightning.fabric.plugins import CheckpointIO
from lightning.pytorch.utilities import CombinedLoader

from mmstepnet.steps.calibration import calibrate
from mmstepnet.steps.examples import run_batch
from mmstepnet.steps.files import METADATA, describe_steps
from mmstepnet.steps.residual import ResidualStep

from .trainers import (
    LOGGER,
    Options,
    randomness_kept,
    save_beside,
    stiffness_of,
)


class StepsCallback(Options, lightning.Callback):
    """Calibrates, measures and saves the steps of a network.

    Before the first epoch, gates' BNs that have no statistics yet get them
    from training batches (:func:`mmstepnet.calibrate`). After each validation
    it logs ``tns`` and ``nsi`` of validation images.

    Into each checkpoint it writes what the steps are, so that
    ``mmstepnet.load_steps(network, 'epoch=1-step=44.ckpt')`` takes them from
    there, averaged or not. Beside each that is written into a local folder
    during a training it writes them to a file of their own,
    ``epoch=1-step=44.steps.safetensors``, which the same function reads.
    ``.ckpt`` comes off a checkpoint's name, so the steps of ``a.pt`` are in
    ``a.pt.steps.safetensors``. None are written to remote folders, nor beside
    a ``last.ckpt`` that is a link. A checkpoint of weights alone that is saved
    behind the training does not say what its steps are, and is refused.

    What cannot be measured or written is a warning, and the training goes on,
    with the random numbers that it would have had.

    Args:
        network (str): Name of the module's part that is measured, calibrated
            and saved. ``''`` is all of it. Defaults to ``'network'``.
        calibration_batches (int): Training batches for the gates' statistics,
            of each loader; 0 for none, as where the data are a stream that
            can be read once, or draw from a generator of their own. Defaults
            to 50.
        measured_batches (int): Validation batches a process for TNS, of each
            loader; 0 for none. Defaults to 8.
        save (bool): Whether to write the steps. Defaults to True.
        forward (Callable, optional): ``forward(network, batch)`` runs the
            network on a batch. None calls it with the first element of a
            tuple or list, the images, and otherwise as
            :func:`mmstepnet.calibrate` does. Defaults to None.
    """

    def __init__(self, network: str = 'network', **options: Any):
        super().__init__(**options)
        self.network = network
        self.forward = self.forward or _run_inputs

    def setup(self, trainer, pl_module, stage) -> None:
        """Write the steps wherever a checkpoint is written."""
        self.checkpoints = trainer.strategy.checkpoint_io
        if self.save:
            trainer.strategy.checkpoint_io = _StepsBeside(
                self.checkpoints, pl_module, self.network
            )

    def teardown(self, trainer, pl_module, stage) -> None:
        """Write checkpoints as before."""
        trainer.strategy.checkpoint_io = self.checkpoints

    def on_save_checkpoint(self, trainer, pl_module, checkpoint) -> None:
        """Say in a checkpoint what its steps are."""
        if self.save:
            _describe(checkpoint, pl_module, self.network)

    def on_fit_start(self, trainer, pl_module) -> None:
        """See that the module has such a part, now that all are built."""
        _part(pl_module, self.network)

    def on_train_start(self, trainer, pl_module) -> None:
        """Calibrate gates that have seen no data."""
        network = _part(pl_module, self.network)
        if self.calibration_batches:
            loaders = trainer.train_dataloader
            with randomness_kept(loaders):
                calibrate(
                    network,
                    _batches(trainer, loaders, self.calibration_batches),
                    forward=self.forward,
                )

    def on_validation_epoch_end(self, trainer, pl_module) -> None:
        """Log TNS and the mean NSI."""
        if self.measured_batches and not trainer.sanity_checking:
            loaders = trainer.val_dataloaders
            with randomness_kept(loaders):
                pl_module.log_dict(
                    stiffness_of(
                        _part(pl_module, self.network),
                        _batches(trainer, loaders, self.measured_batches),
                        self.forward,
                        pl_module.device,
                    )
                )


class _StepsBeside(CheckpointIO):
    """Writes, removes and reads checkpoints, and steps beside them."""

    def __init__(self, inner: CheckpointIO, module: nn.Module, network: str):
        self.inner = inner
        self.module = module
        self.network = network

    def save_checkpoint(self, checkpoint, path, storage_options=None) -> None:
        """Write both, the steps as the checkpoint has them."""
        if METADATA not in checkpoint:  # as where weights alone are saved
            _describe(checkpoint, self.module, self.network)
        self.inner.save_checkpoint(checkpoint, path, storage_options)
        if '://' not in str(path):
            prefix = f'{self.network}.' if self.network else ''
            weights = checkpoint.get('state_dict')
            save_beside(
                self.module.get_submodule(self.network),
                _beside(path),
                weights
                and {
                    key.removeprefix(prefix): value
                    for key, value in weights.items()
                    if key.startswith(prefix)
                },
            )

    def load_checkpoint(self, *args, **kwargs) -> dict[str, Any]:
        """Read a checkpoint."""
        return self.inner.load_checkpoint(*args, **kwargs)

    def remove_checkpoint(self, path) -> None:
        """Remove both."""
        self.inner.remove_checkpoint(path)
        _beside(path).unlink(missing_ok=True)

    def teardown(self) -> None:
        """Wait for what is still being written."""
        self.inner.teardown()


def _part(module: nn.Module, network: str) -> nn.Module:
    """The part of a module that a callback was given.

    Raises:
        AttributeError: The module has no such part.
    """
    try:
        return module.get_submodule(network)
    except AttributeError as error:
        parts = dict(module.named_children())
        stepped = [
            name
            for name, part in parts.items()
            if any(isinstance(m, ResidualStep) for m in part.modules())
        ]
        right = stepped[0] if len(stepped) == 1 else ''
        raise AttributeError(
            f'{type(module).__name__} has no {network!r}, and its parts are '
            f'{", ".join(parts)}; name the network: StepsCallback({right!r}), '
            f"where '' is the whole module"
        ) from error


def _describe(
    checkpoint: dict[str, Any], module: nn.Module, network: str
) -> None:
    """Write into a checkpoint what :func:`load_steps` needs beside it."""
    try:
        about = describe_steps(module.get_submodule(network))
    except Exception as error:  # the training goes on
        LOGGER.warning(
            'the checkpoint does not say what its steps are (%s: %s)',
            type(error).__name__,
            error,
        )
    else:
        checkpoint[METADATA] = json.dumps(dict(about, network=network))


def _beside(path: str | Path) -> Path:
    path = Path(path)
    name = path.name.removesuffix('.ckpt')
    return path.with_name(f'{name}.steps.safetensors')


def _run_inputs(network: nn.Module, batch: Any) -> Any:
    return run_batch(
        network, batch[0] if isinstance(batch, (tuple, list)) else batch
    )


def _batches(
    trainer: lightning.Trainer, loaders: Any, count: int
) -> Iterator[Any]:
    """The first batches of each loader, as a step gets them.

    Args:
        trainer (Trainer): Its module prepares them.
        loaders (Any): A loader, or some in lists, dicts and the like.
        count (int): How many a loader.
    """
    module = trainer.lightning_module
    for k, loader in enumerate(CombinedLoader(loaders).flattened):
        for batch in islice(loader, count):
            batch = trainer.precision_plugin.convert_input(batch)
            batch = module._on_before_batch_transfer(batch, dataloader_idx=k)
            yield trainer.strategy.batch_to_device(batch, dataloader_idx=k)
