from .calibration_hook import AttentionBNCalibrationHook
from .durable_checkpoint_hook import DurableCheckpointHook
from .interim_checkpoint_hook import InterimCheckpointHook
from .stiffness_hook import StiffnessHook

__all__ = [
    'AttentionBNCalibrationHook', 'DurableCheckpointHook',
    'InterimCheckpointHook', 'StiffnessHook'
]
