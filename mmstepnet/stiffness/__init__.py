from .indices import (
    neural_stiffness_index,
    simplified_stiffness,
    stiffness_aware_index,
    stiffness_index,
)
from .record import load_record, save_record
from .total import (
    stiffness_occurrence,
    stiffness_proportion,
    total_neural_stiffness,
    total_stiffness_proportion,
)
from .trajectory import TrajectoryRecorder

__all__ = [
    'TrajectoryRecorder',
    'load_record',
    'neural_stiffness_index',
    'save_record',
    'simplified_stiffness',
    'stiffness_aware_index',
    'stiffness_index',
    'stiffness_occurrence',
    'stiffness_proportion',
    'total_neural_stiffness',
    'total_stiffness_proportion',
]
