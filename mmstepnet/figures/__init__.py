"""What one sees: the papers' figures, and the page that compares networks.

For whoever shows results. Recordings go in; pictures and one HTML file come
out. Needs the extra ``figures``.
"""

from mmstepnet.checks import check_installed

check_installed(
    __name__,
    'altair',
    'jinja2',
    'vl_convert',
    install="'.[figures]' in a checkout",
)

from .block_scores import save_block_scores  # noqa: E402
from .figures import save_report_figures, save_stiffness_figures  # noqa: E402
from .report import save_report  # noqa: E402
from .runs import Accuracy, Run  # noqa: E402

__all__ = [
    'Accuracy',
    'Run',
    'save_block_scores',
    'save_report',
    'save_report_figures',
    'save_stiffness_figures',
]
