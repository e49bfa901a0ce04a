"""Scalars and figures in the visualizer's backends.

A backend that fails, for want of a network say, is warned about and stops
nothing.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import mmcv
from mmengine.runner import Runner
from mmengine.visualization import BaseVisBackend, LocalVisBackend


def show_scalars(runner: Runner, scalars: Mapping[str, float],
                 step: int) -> None:
    """Show numbers in TensorBoard, W&B and what else a runner writes to.

    Args:
        runner (Runner): The runner.
        scalars (Mapping[str, float]): Name in the backends -> number.
        step (int): Epoch or iteration that they are of.
    """
    _show(runner, 'the scalars of stiffness',
          lambda backend: backend.add_scalars(scalars, step))


def show_figures(runner: Runner, figures: Mapping[str, Path],
                 step: int) -> None:
    """Show PNG files there.

    The local backend, which would copy the files to another folder of the
    same job, is left out.

    Args:
        runner (Runner): The runner.
        figures (Mapping[str, Path]): Name in the backends -> file.
        step (int): Epoch or iteration that they are of.
    """
    def show(backend: BaseVisBackend) -> None:
        if not isinstance(backend, LocalVisBackend):
            for name, path in figures.items():
                image = mmcv.imread(path, channel_order='rgb')
                backend.add_image(name, image, step=step)

    _show(runner, ', '.join(map(str, figures.values())), show)


def _show(runner: Runner, what: str,
          show: Callable[[BaseVisBackend], None]) -> None:
    for backend in runner.visualizer._vis_backends.values():
        try:
            show(backend)
        except Exception as error:  # whatever a service's client raises
            runner.logger.warning(
                f'{type(backend).__name__} does not show {what}: '
                f'{type(error).__name__}: {error}')
