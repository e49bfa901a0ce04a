from .indices import (
    neural_stiffness_index,
    simplified_stiffness,
    stiffness_aware_index,
    stiffness_index,
)
from .total import (
    stiffness_occurrence,
    stiffness_proportion,
    total_neural_stiffness,
    total_stiffness_proportion,
)

__all__ = [
    'neural_stiffness_index',
    'simplified_stiffness',
    'stiffness_aware_index',
    'stiffness_index',
    'stiffness_occurrence',
    'stiffness_proportion',
    'total_neural_stiffness',
    'total_stiffness_proportion',
]
