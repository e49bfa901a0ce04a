from .calibration_hook import AttentionBNCalibrationHook
from .interim_checkpoint_hook import InterimCheckpointHook
from .stiffness_hook import StiffnessHook

__all__ = [
    'AttentionBNCalibrationHook', 'InterimCheckpointHook', 'StiffnessHook'
]
