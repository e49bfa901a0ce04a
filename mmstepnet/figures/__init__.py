from .figures import save_report_figures, save_stiffness_figures
from .report import save_report
from .runs import Accuracy, Run, load_run, load_runs

__all__ = [
    'Accuracy', 'Run', 'load_run', 'load_runs', 'save_report',
    'save_report_figures', 'save_stiffness_figures'
]
