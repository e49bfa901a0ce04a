"""The package's nodes in OpenMMLab's registry tree.

Every node has the scope ``mmstepnet`` and a parent in mmengine, and knows
where its modules live. So ``type='mmstepnet.StepResNet'`` builds inside an
MMPretrain or MMDetection config with neither ``custom_imports`` nor a
registration call.

Whatever the library says while a job runs goes to the job's log.
"""

from .compatibility import check_hosts
from .messages import LOGGER, JobHandler

check_hosts('mmengine', 'mmcv')

from mmengine import registry  # noqa: E402
from mmengine.logging import MMLogger, print_log  # noqa: E402


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


class RunnerHandler(JobHandler):
    """Writes into the log of the Runner's work directory."""

    def is_open(self) -> bool:
        """Whether a Runner has made a logger; MMEngine's own is no job's."""
        return MMLogger.get_current_instance().instance_name != 'mmengine'

    def write(self, level: int, text: str) -> None:
        """Write into it."""
        print_log(text, 'current', level)


LOGGER.addHandler(RunnerHandler())
