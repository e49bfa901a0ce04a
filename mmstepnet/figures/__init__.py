from .figures import save_report_figures, save_stiffness_figures
from .report import save_report
from .runs import Accuracy, Run

__all__ = [
    'Accuracy', 'Run', 'save_report', 'save_report_figures',
    'save_stiffness_figures'
]
