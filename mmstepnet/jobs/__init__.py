"""The kit under ``tools/``: a training that survives what can happen to it.

For whoever runs jobs: checkpoints that are whole or not there, files that are
read as data, data sets that are looked at before the first epoch, resuming
bit for bit. It stands on mmengine alone, and nothing else of the library on
it.
"""

from mmstepnet.compatibility import check_hosts

check_hosts('mmengine', 'mmcv')

from .data_check_hook import DataCheckHook  # noqa: E402
from .durable_checkpoint_hook import DurableCheckpointHook  # noqa: E402
from .finite_check_hook import FiniteCheckHook  # noqa: E402
from .interim_checkpoint_hook import InterimCheckpointHook  # noqa: E402
from .loops import ResumableEpochLoop  # noqa: E402

__all__ = [
    'DataCheckHook', 'DurableCheckpointHook', 'FiniteCheckHook',
    'InterimCheckpointHook', 'ResumableEpochLoop'
]
