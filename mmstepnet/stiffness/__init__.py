"""Stiffness of a network: NSI, TNS and stiffness proportion.

For whoever measures. States, or any model and its batches, go in; numbers a
sample and block come out, and what they mean for the network. The mathematics
are functions of tensors; the recorder and the measurement stand on them. On
PyTorch, NumPy and SciPy alone.
"""

from mmstepnet.tracing import FoundStep, find_steps

from .block_scores import SCORES, ablate_blocks, block_scores
from .correlations import RankCorrelation, correlate_ranks
from .gates import GateStatistics, measure_gates
from .indices import (
    neural_stiffness_index,
    simplified_stiffness,
    stiffness_aware_index,
    stiffness_index,
)
from .readings import DEFAULT_READING, FIELDS, READING_TEXTS, READINGS
from .recorder import TrajectoryRecorder, measure_stiffness
from .summary import summary
from .total import (
    MEANS,
    block_stiffness,
    degree_axes,
    stiffness_occurrence,
    stiffness_proportion,
    total_neural_stiffness,
    total_stiffness_proportion,
)
from .training import Trainings, find_recordings, read_trainings
from .trajectories import Trajectories

__all__ = [
    'DEFAULT_READING',
    'FIELDS',
    'MEANS',
    'READINGS',
    'READING_TEXTS',
    'SCORES',
    'FoundStep',
    'GateStatistics',
    'RankCorrelation',
    'Trainings',
    'Trajectories',
    'TrajectoryRecorder',
    'ablate_blocks',
    'block_scores',
    'block_stiffness',
    'correlate_ranks',
    'degree_axes',
    'find_recordings',
    'find_steps',
    'measure_gates',
    'measure_stiffness',
    'neural_stiffness_index',
    'read_trainings',
    'simplified_stiffness',
    'stiffness_aware_index',
    'stiffness_index',
    'stiffness_occurrence',
    'stiffness_proportion',
    'summary',
    'total_neural_stiffness',
    'total_stiffness_proportion',
]
