"""A look at what a job has loaded before the first iteration."""

import logging
import re
from collections.abc import Iterable, Iterator, Mapping

import torch.nn as nn
from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmstepnet.registry import HOOKS
from mmstepnet.tracing import unwrap

from .checkpoint import STEP, steps_of_names

OF_BACKBONE = re.compile(r'(.*\.)?backbone\.')
"""What the name of a backbone's weight begins with."""


@HOOKS.register_module()
class LoadCheckHook(Hook):
    """Say in the log how ``load_from`` fits the model of a training.

    mmengine prints the names that differ on the terminal, those of new steps,
    which are in order, beside those of another network. A job that resumes is
    left alone. ``tools/train.py`` adds the hook.
    """

    def __init__(self) -> None:
        self.missing: list[str] = []
        self.unexpected: list[str] = []
        self.is_whole = True
        self._handle = None

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Have PyTorch tell what differs; mmengine loads next."""
        if runner._resume:
            return
        model = unwrap(runner.model)
        weights = checkpoint.get('state_dict', checkpoint)
        self.is_whole = have_the_same_shapes(model, weights)
        # By the names that the model's own reading has renamed.
        self._handle = model.register_load_state_dict_post_hook(self._keep)

    def _keep(self, model: nn.Module, names: tuple) -> None:
        self.missing, self.unexpected = map(list, names)

    def before_train(self, runner: Runner) -> None:
        """Say it."""
        if self._handle is None:
            return
        self._handle.remove()
        self._handle = None
        for level, text in loading_notes(
            str(runner._load_from),
            self.missing,
            self.unexpected,
            self.is_whole,
        ):
            runner.logger.log(level, text)


def have_the_same_shapes(model: nn.Module, weights: Mapping) -> bool:
    """Whether parameters have the shapes of the weights of their names."""
    parameters = dict(model.named_parameters())
    names = {str(name).removeprefix('module.'): name for name in weights}
    return all(
        weights[names[name]].shape == parameters[name].shape
        for name in parameters.keys() & names.keys()
    )


def loading_notes(
    path: str,
    missing: Iterable[str],
    unexpected: Iterable[str],
    is_whole: bool = True,
) -> Iterator[tuple[int, str]]:
    """Say what a training that starts from a checkpoint does not find in it.

    Of heads nothing is said, which often have another number of classes.

    Args:
        path (str): The checkpoint.
        missing (Iterable[str]): Names of weights that the model alone has.
        unexpected (Iterable[str]): Names that the checkpoint alone has.
        is_whole (bool): Whether all other weights have the model's shapes.
            Defaults to True.

    Yields:
        tuple[int, str]: A level of logging, and a sentence.
    """
    missing, unexpected = list(missing), list(unexpected)
    # mmengine does not count these either: old files have none.
    lacking = [
        name
        for name in missing
        if OF_BACKBONE.match(name)
        and not STEP.match(name)
        and not name.endswith('.num_batches_tracked')
    ]
    foreign = [name for name in unexpected if OF_BACKBONE.match(name)]
    differences = [
        f'{what}, the first in {names[0].rpartition(".")[0]}'
        for what, names in (
            (f'lacks {len(lacking)} weights of the backbone', lacking),
            (f'has {len(foreign)} that the backbone does not have', foreign),
        )
        if names
    ]
    if differences:
        yield (
            logging.WARNING,
            f'{path!r} {" and ".join(differences)}: it may be the checkpoint '
            f'of another network, such as one of another depth',
        )
    steps = len(steps_of_names(missing))
    if not steps or lacking:
        return
    if is_whole and not unexpected:
        yield (
            logging.INFO,
            f'all weights of {path!r} were loaded; {steps} new steps are not '
            f'in it and start anew',
        )
    else:
        yield (
            logging.INFO,
            f'{steps} new steps are not in {path!r} and start anew',
        )
