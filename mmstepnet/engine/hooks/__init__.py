from .calibration_hook import AttentionBNCalibrationHook
from .data_check_hook import DataCheckHook
from .durable_checkpoint_hook import DurableCheckpointHook
from .finite_check_hook import FiniteCheckHook
from .interim_checkpoint_hook import InterimCheckpointHook
from .stiffness_hook import StiffnessHook

__all__ = [
    'AttentionBNCalibrationHook', 'DataCheckHook', 'DurableCheckpointHook',
    'FiniteCheckHook', 'InterimCheckpointHook', 'StiffnessHook'
]
