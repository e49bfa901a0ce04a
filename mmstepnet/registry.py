"""The package's nodes in OpenMMLab's registry tree.

Every node has the scope ``mmstepnet`` and a parent in mmengine, and knows
where its modules live. So ``type='mmstepnet.StepResNet'`` builds inside an
MMPretrain or MMDetection config with neither ``custom_imports`` nor a
registration call.

Whatever the library says from here on goes to MMEngine's logger, too.
"""

import logging

from .compatibility import check_hosts
from .messages import LOGGER

check_hosts('mmengine', 'mmcv')

from mmengine import registry  # noqa: E402
from mmengine.logging import print_log  # noqa: E402


def _node(parent: registry.Registry, *rooms: str) -> registry.Registry:
    return registry.Registry(
        parent.name,
        parent=parent,
        scope='mmstepnet',
        locations=[f'mmstepnet.{room}' for room in rooms],
    )


MODELS = _node(registry.MODELS, 'models')
"""Backbones and norm layers."""

DATASETS = _node(registry.DATASETS, 'datasets')
"""Data sets, the embedded ones among them."""

DATA_SAMPLERS = _node(registry.DATA_SAMPLERS, 'datasets')
"""Samplers and batch samplers."""

HOOKS = _node(registry.HOOKS, 'engine', 'jobs')
"""Hooks of mmengine's runner."""

LOOPS = _node(registry.LOOPS, 'jobs')
"""Loops of mmengine's runner."""


class MMEngineHandler(logging.Handler):
    """Hands messages to the logger that MMEngine made last.

    In a job that is the Runner's, which writes the log of the work directory.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Log the text of a record."""
        print_log(record.getMessage(), 'current', record.levelno)


LOGGER.addHandler(MMEngineHandler())
if LOGGER.level == logging.NOTSET:
    LOGGER.setLevel(logging.INFO)  # what MMEngine shows
