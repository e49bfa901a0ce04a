"""What one sees: the papers' figures, and the page that compares networks.

For whoever shows results. Recordings go in; PNGs and one HTML file come out.
Needs the extra ``figures``.
"""

from .block_scores import save_block_scores
from .figures import save_report_figures, save_stiffness_figures
from .report import save_report
from .runs import Accuracy, Run

__all__ = [
    'Accuracy', 'Run', 'save_block_scores', 'save_report',
    'save_report_figures', 'save_stiffness_figures'
]
