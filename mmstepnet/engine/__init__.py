"""Hooks of mmengine: stiffness while training, calibration of gates.

For whoever writes configs: ``custom_hooks=[dict(type=
'mmstepnet.StiffnessHook')]``.
"""

from mmstepnet.compatibility import check_hosts

check_hosts('mmengine', 'mmcv')

from .hooks import *  # noqa: E402, F403
