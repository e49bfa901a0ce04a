"""The kit under ``tools/``: a training that survives what can happen to it.

For whoever runs jobs: checkpoints that are whole or not there, files that are
read as data, classes that are compared before the first epoch, resuming bit
for bit. It stands on mmengine alone, and nothing else of the library on it.
"""

from mmstepnet.compatibility import check_hosts

check_hosts('mmengine', 'mmcv')

from . import (  # noqa: E402
    checkpoint_hooks,  # noqa: F401
    data_check_hook,  # noqa: F401
    gate_check_hook,  # noqa: F401
    load_check_hook,  # noqa: F401
    loops,  # noqa: F401
)
