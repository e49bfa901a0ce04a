from .calibration_hook import AttentionBNCalibrationHook

__all__ = ['AttentionBNCalibrationHook']
