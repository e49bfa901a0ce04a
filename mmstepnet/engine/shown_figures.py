"""Figures in the visualizer's backends, beside the scalars."""

from collections.abc import Mapping
from pathlib import Path

import mmcv
from mmengine.runner import Runner
from mmengine.visualization import LocalVisBackend


def show_figures(runner: Runner, figures: Mapping[str, Path],
                 step: int) -> None:
    """Show PNG files in TensorBoard, W&B and what else a runner writes to.

    The local backend, which would copy the files to another folder of the
    same job, is left out. A backend that fails, for want of a network say,
    is warned about and stops nothing.

    Args:
        runner (Runner): The runner.
        figures (Mapping[str, Path]): Name in the backends -> file.
        step (int): Epoch or iteration that they are of.
    """
    backends = [
        backend for backend in runner.visualizer._vis_backends.values()
        if not isinstance(backend, LocalVisBackend)
    ]
    for backend in backends:
        try:
            for name, path in figures.items():
                image = mmcv.imread(path, channel_order='rgb')
                backend.add_image(name, image, step=step)
        except Exception as error:  # whatever a service's client raises
            runner.logger.warning(
                f'{type(backend).__name__} does not show '
                f'{", ".join(map(str, figures.values()))}: '
                f'{type(error).__name__}: {error}')
