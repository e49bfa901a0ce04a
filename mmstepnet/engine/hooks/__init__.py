from .calibration_hook import AttentionBNCalibrationHook
from .stiffness_hook import StiffnessHook

__all__ = ['AttentionBNCalibrationHook', 'StiffnessHook']
