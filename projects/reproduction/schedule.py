"""What a training job must know of its config."""

from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mmengine.config import Config

from mmstepnet.jobs.job import KeyValueAction

BATCH_SIZE = 'train_dataloader.batch_size'


@dataclass(frozen=True)
class Schedule:
    """Its epochs, validations and the images of a step."""

    max_epochs: int
    val_interval: int
    val_begin: int
    validates_on_test: bool
    batch_size: int | None = None
    """Of a process, where the config's would not give a step the images that
    its table is about."""

    @classmethod
    def read(cls, config: Path, cfg_options: Sequence[str],
             gpus: int = 1) -> 'Schedule':
        """Read it from a config.

        Raises:
            ValueError: The training loop does not count epochs, or the images
                of a step cannot be shared by the GPUs.
        """
        cfg = Config.fromfile(config)
        if cfg_options:
            parser = ArgumentParser()
            parser.add_argument(
                '--cfg-options', nargs='+', action=KeyValueAction)
            cfg.merge_from_dict(parser.parse_args(
                ['--cfg-options', *cfg_options]).cfg_options)
        loop = cfg.train_cfg
        if 'max_epochs' not in loop:
            raise ValueError(f'{config}: train_cfg has no max_epochs; tables '
                             'compare epochs')
        if not isinstance(loop.max_epochs, int):
            raise ValueError(f'{config}: train_cfg.max_epochs must be an '
                             f'integer, got {loop.max_epochs!r}')
        return cls(loop.max_epochs, loop.get('val_interval', 1),
                   loop.get('val_begin', 1),
                   cfg.val_dataloader.dataset == cfg.test_dataloader.dataset,
                   _batch_size(config, cfg, cfg_options, gpus))

    def validates(self, epoch: int) -> bool:
        """Whether the training loop validates after this epoch."""
        return epoch >= self.val_begin and (epoch % self.val_interval == 0
                                            or epoch == self.max_epochs)


def _batch_size(config: Path, cfg: Config, cfg_options: Sequence[str],
                gpus: int) -> int | None:
    """Share the images of a step among the GPUs, unless told otherwise."""
    scale = cfg.get('auto_scale_lr', {})
    base = scale.get('base_batch_size')
    chosen = any(o.startswith(f'{BATCH_SIZE}=') for o in cfg_options)
    if base is None or chosen or scale.get('enable'):
        return None
    if base % gpus:
        raise ValueError(
            f'{config}: the {base} images of a step cannot be shared by '
            f'{gpus} GPUs; take a number that divides {base}, or '
            f'--cfg-options {BATCH_SIZE}=N auto_scale_lr.enable=True')
    size = base // gpus
    return None if size == cfg.train_dataloader.batch_size else size
